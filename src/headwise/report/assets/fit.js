startTheme();
byId("no-script")?.remove();
startTimeline();
startChanges();
