// Who reads whom in one head, from its map where that has the whole row and from the heaviest keys where not; with the
// first token or without it. Entries are { index, weight }, the heaviest first.
const reading = { withoutFirst: false, scales: new Map() };

const hasWholeRow = (part, map, query) =>
  map && query < map.numQueries && (map.numKeys >= part.numKeys || (part.isCausal && query < map.numKeys));

// Without the first token the others share the whole weight: each grows by 1 / (1 - weight of the first). Where that
// weight is not known (a long text whose heaviest keys have no first token) nothing changes.
const scalesOf = (part, head) => {
  const name = `${part.index} ${nameOf(head.layer, head.head)}`;
  if (reading.scales.has(name)) return reading.scales.get(name);
  const map = part.mapOf(head);
  const top = part.topOf(head);
  const scales = Float32Array.from({ length: part.numQueries }, (_, query) => {
    if (hasWholeRow(part, map, query)) {
      let others = 0;
      for (let key = 1; key < map.numKeys; key += 1) others += weightOf(map.bytes[query * map.numKeys + key]);
      return others > 0 ? 1 / others : 1;
    }
    for (let rank = 0; top && rank < top.numRanks; rank += 1) {
      const at = rank * top.numQueries + query;
      if (top.keys[at] === 0) return 1 / Math.max(1e-6, 1 - weightOf(top.weights[at]));
    }
    return 1;
  });
  reading.scales.set(name, scales);
  return scales;
};

const byWeight = (one, other) => other.weight - one.weight || one.index - other.index;

// What one query reads: `rest` is the weight of all keys that are no entry; null where the page does not know.
const readsOf = (part, head, query) => {
  const map = part.mapOf(head);
  const top = part.topOf(head);
  const entries = [];
  let rest = 0;
  const whole = hasWholeRow(part, map, query);
  if (whole || (!top && map && query < map.numQueries)) {
    let sum = 0;
    for (let key = 0; key < map.numKeys; key += 1) {
      const byte = map.bytes[query * map.numKeys + key];
      if (byte) entries.push({ index: key, weight: weightOf(byte) });
      sum += weightOf(byte);
    }
    if (!whole) rest = Math.max(0, 1 - sum);
  } else if (top && query < top.numQueries) {
    for (let rank = 0; rank < top.numRanks; rank += 1) {
      const at = rank * top.numQueries + query;
      if (top.keys[at] !== NO_KEY && top.weights[at]) entries.push({ index: top.keys[at], weight: weightOf(top.weights[at]) });
    }
    rest = weightOf(top.rests[query]);
  } else return null;
  const answer = { entries, rest, exact: Boolean(whole) };
  if (reading.withoutFirst) {
    const scale = scalesOf(part, head)[query];
    answer.entries = entries.filter((entry) => entry.index !== 0).map(({ index, weight }) => ({ index, weight: Math.min(1, weight * scale) }));
    answer.rest = Math.min(1, rest * scale);
  }
  answer.entries.sort(byWeight);
  return answer;
};

// Which queries read one key; of a query whose heaviest keys alone are known, only if it is one of them.
const readersOf = (part, head, key) => {
  const map = part.mapOf(head);
  const top = part.topOf(head);
  if (!map && !top) return null;
  const entries = [];
  let exact = true;
  const scales = reading.withoutFirst ? scalesOf(part, head) : null;
  const note = (query, byte) => {
    if (byte && !(scales && key === 0)) entries.push({ index: query, weight: Math.min(1, weightOf(byte) * (scales ? scales[query] : 1)) });
  };
  for (let query = 0; query < part.numQueries; query += 1) {
    if (map && query < map.numQueries && key < map.numKeys) note(query, map.bytes[query * map.numKeys + key]);
    else if (part.isCausal && !part.isCross && query < key) continue;
    else {
      exact = false;
      for (let rank = 0; top && rank < top.numRanks; rank += 1) {
        const at = rank * top.numQueries + query;
        if (top.keys[at] === key) note(query, top.weights[at]);
      }
    }
  }
  return { entries: entries.sort(byWeight), rest: null, exact };
};

// A map as it is shown: with all its keys, or without the first.
const shownMap = (part, head, map) => {
  if (!map || map.tile > 1 || !reading.withoutFirst) return map;
  const roots = scalesOf(part, head).map(Math.sqrt);
  const bytes = Uint8Array.from(map.bytes, (byte, at) =>
    at % map.numKeys ? Math.min(255, Math.round(byte * roots[Math.floor(at / map.numKeys)])) : 0,
  );
  return { ...map, bytes };
};
