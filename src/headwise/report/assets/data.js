// Heads, maps and tokens, as the page carries them.
const dataElement = byId("heads-data");
const data = dataElement ? JSON.parse(dataElement.textContent) : null;

const nameOf = (layer, head) => `${layer}.${head}`;

// A map keeps the square root of each weight in 8 bits: small weights stay apart.
const weightOf = (byte) => (byte / 255) ** 2;

const maps = new Map();
if (data) {
  for (const map of data.maps) {
    const bytes = Uint8Array.from(atob(map.weights), (character) => character.charCodeAt(0));
    maps.set(nameOf(map.layer, map.head), { numQueries: map.num_queries, numKeys: map.num_keys, bytes });
  }
  for (const [index, statistic] of data.statistics.entries()) {
    const values = data.heads.map((head) => head.values[index]).filter((value) => value !== null);
    statistic.largest = statistic.top ?? Math.max(0, ...values);
  }
}

const tokenAt = (index) => data.tokens[index] ?? `#${index}`;

const fractionOf = (value, statistic) =>
  value === null || !statistic.largest ? null : Math.min(1, Math.max(0, value / statistic.largest));

// A share in two digits; one that would round up to all of it keeps a third.
const formatShare = (share) => share.toFixed(share >= 0.995 && share < 1 ? 3 : 2);

const format = (value, statistic, withUnit = false) => {
  if (value === null) return "–";
  const text = value >= 9.995 ? value.toFixed(value >= 99.95 ? 0 : 1) : formatShare(value);
  return withUnit && statistic.unit ? `${text} ${statistic.unit}` : text;
};

const formatWeight = (weight) => {
  if (weight === 0 || weight >= 0.0995) return formatShare(weight);
  return weight < 0.001 ? "under 0.001" : weight.toFixed(3);
};
