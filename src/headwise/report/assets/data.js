// Heads, maps and tokens, as the page carries them, part by part.
const dataElement = byId("heads-data");
const data = dataElement ? JSON.parse(dataElement.textContent) : null;
const statistics = data ? data.statistics : [];

const nameOf = (layer, head) => `${layer}.${head}`;

// A map keeps the square root of each weight in 8 bits: small weights stay apart.
const weightOf = (byte) => (byte / 255) ** 2;

const NO_KEY = 0xffff;
const SMALL_MAP = 128; // tokens of a map that is drawn whole in the grid

// One of the things that are shown beside one another: its heads, and what each of them reads.
class Part {
  constructor(own, index) {
    Object.assign(this, { data: own, index, name: own.name, comparable: own.comparable, heads: own.heads, tokens: own.tokens });
    this.keyTokens = own.key_tokens ?? own.tokens;
    this.isCross = own.key_tokens !== null;
    this.isCausal = own.is_causal;
    const sizes = (name) => Math.max(0, own.maps[0]?.[name] ?? 0);
    this.numQueries = Math.max(own.tokens.length, sizes("num_queries"), own.top_keys[0]?.num_queries ?? 0);
    this.numKeys = Math.max(this.keyTokens.length, sizes("num_keys"));
    this.packed = {};
    for (const kind of ["maps", "overviews", "top_keys"]) {
      this.packed[kind] = new Map(own[kind].map((one) => [nameOf(one.layer, one.head), one]));
    }
    this.unpacked = new Map();
    // what no head of this part was measured for is not shown beside a part that was
    this.shown = statistics.map((_, place) => data.parts.length === 1 || own.heads.some((head) => head.values[place] !== null));
  }

  headAt(layer, head) {
    return this.heads.find((one) => one.layer === layer && one.head === head) ?? null;
  }

  mapOf(head) {
    return this.kept("maps", head, (one) => ({
      numQueries: one.num_queries,
      numKeys: one.num_keys,
      tile: one.tile,
      bytes: unpack(one.weights, one.num_queries * one.num_keys),
    }));
  }

  overviewOf(head) {
    return this.kept("overviews", head, (one) => ({
      numQueries: one.num_queries,
      numKeys: one.num_keys,
      tile: one.tile,
      bytes: unpack(one.weights, one.num_queries * one.num_keys),
    }));
  }

  // Rank by rank: the heaviest keys of all queries, then the second ones.
  topOf(head) {
    return this.kept("top_keys", head, (one) => {
      const count = one.num_queries * one.num_keys;
      const bytes = unpack(one.keys, 2 * count);
      return {
        numQueries: one.num_queries,
        numRanks: one.num_keys,
        keys: Uint16Array.from({ length: count }, (_, at) => bytes[2 * at] | (bytes[2 * at + 1] << 8)),
        weights: unpack(one.weights, count),
        rests: unpack(one.rests, one.num_queries),
      };
    });
  }

  hasMap(head) {
    return this.packed.maps.has(nameOf(head.layer, head.head)) || this.packed.overviews.has(nameOf(head.layer, head.head));
  }

  // The map that is small enough for the grid, shrunk where neither is.
  thumbOf(head) {
    const own = this.packed.maps.get(nameOf(head.layer, head.head));
    const small = own && Math.max(own.num_queries, own.num_keys) <= SMALL_MAP && own.num_queries >= this.numQueries;
    return shrink(small ? this.mapOf(head) : this.overviewOf(head) ?? this.mapOf(head), SMALL_MAP);
  }

  kept(kind, head, read) {
    const name = nameOf(head.layer, head.head);
    const packed = this.packed[kind].get(name);
    if (!packed) return null;
    const place = `${kind} ${name}`;
    if (!this.unpacked.has(place)) this.unpacked.set(place, read(packed));
    return this.unpacked.get(place);
  }
}

// A map of at most `side` rows and columns: of the weights that fall together the largest.
const shrink = (map, side) => {
  const step = Math.ceil(Math.max(map.numQueries, map.numKeys) / side);
  if (step === 1) return map;
  const numQueries = Math.ceil(map.numQueries / step);
  const numKeys = Math.ceil(map.numKeys / step);
  const bytes = new Uint8Array(numQueries * numKeys);
  for (let query = 0, from = 0; query < map.numQueries; query += 1) {
    const row = Math.floor(query / step) * numKeys;
    for (let key = 0; key < map.numKeys; key += 1, from += 1) {
      const at = row + Math.floor(key / step);
      if (map.bytes[from] > bytes[at]) bytes[at] = map.bytes[from];
    }
  }
  return { numQueries, numKeys, tile: map.tile * step, bytes };
};

const parts = data ? data.parts.map((own, index) => new Part(own, index)) : [];
for (const [index, statistic] of statistics.entries()) {
  const values = parts.flatMap((part) => part.heads.map((head) => head.values[index]).filter((value) => value !== null));
  statistic.largest = statistic.top ?? values.reduce((most, value) => Math.max(most, value), 0);
}

// The part that is shown; whoever draws it is told when it changes.
const partReaders = [];
let shownPart = parts[0];
const currentPart = () => shownPart;
const onPart = (callback) => {
  partReaders.push(callback);
  callback(shownPart);
};
const showPart = (index) => {
  shownPart = parts[index];
  partReaders.forEach((callback) => callback(shownPart));
};

// What other scripts of the page do once its views have started, and their panels beside an open head.
const starters = [];
const headPanels = [];

const tokenAt = (tokens, index) => tokens[index] ?? `#${index}`;

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
