// zlib streams in base64, inflated where they stand: the browser's own DecompressionStream answers later, and then every
// reader of a map would have to wait. Source: RFC 1950; RFC 1951, sections 3.2.2 to 3.2.7.
const LENGTH_EXTRAS = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
const DISTANCE_EXTRAS = Array.from({ length: 30 }, (_, code) => Math.max(0, (code >> 1) - 1));
const LENGTHS_ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
const startsOf = (extras, first) => extras.map((_, code) => extras.slice(0, code).reduce((sum, bits) => sum + 2 ** bits, first));
const LENGTH_STARTS = startsOf(LENGTH_EXTRAS, 3);
LENGTH_STARTS[28] = 258; // the last code alone stands for the longest match
const DISTANCE_STARTS = startsOf(DISTANCE_EXTRAS, 1);

// For all values of the next bits, lowest first: 16 * symbol + length of its code.
const makeCode = (lengths) => {
  const longest = Math.max(1, ...lengths);
  const table = new Uint16Array(1 << longest);
  let code = 0;
  for (let length = 1; length <= longest; length += 1) {
    lengths.forEach((own, symbol) => {
      if (own !== length) return;
      let reversed = 0;
      for (let bit = 0; bit < length; bit += 1) reversed |= ((code >> bit) & 1) << (length - 1 - bit);
      for (let at = reversed; at < table.length; at += 1 << length) table[at] = (symbol << 4) | length;
      code += 1;
    });
    code <<= 1;
  }
  return table;
};
const FIXED_LITERALS = makeCode(Array.from({ length: 288 }, (_, symbol) => (symbol < 144 ? 8 : symbol < 256 ? 9 : symbol < 280 ? 7 : 8)));
const FIXED_DISTANCES = makeCode(Array.from({ length: 30 }, () => 5));

// `size` is how many bytes come out: whoever reads them knows.
const inflate = (input, size) => {
  const output = new Uint8Array(size);
  let position = 2; // behind the header
  let held = 0;
  let numHeld = 0;
  let written = 0;
  const need = (count) => {
    for (; numHeld < count; numHeld += 8, position += 1) held |= (input[position] ?? 0) << numHeld;
  };
  const bits = (count) => {
    need(count);
    const value = held & ((1 << count) - 1);
    held >>>= count;
    numHeld -= count;
    return value;
  };
  const symbol = (table) => {
    need(15);
    const entry = table[held & (table.length - 1)];
    held >>>= entry & 15;
    numHeld -= entry & 15;
    return entry >> 4;
  };
  const readCodes = () => {
    const numLiterals = bits(5) + 257;
    const numDistances = bits(5) + 1;
    const ownLengths = new Array(19).fill(0);
    for (let count = bits(4) + 4, at = 0; at < count; at += 1) ownLengths[LENGTHS_ORDER[at]] = bits(3);
    const own = makeCode(ownLengths);
    const lengths = [];
    while (lengths.length < numLiterals + numDistances) {
      const next = symbol(own);
      if (next < 16) lengths.push(next);
      else {
        const repeated = next === 16 ? lengths[lengths.length - 1] : 0;
        const count = next === 16 ? 3 + bits(2) : next === 17 ? 3 + bits(3) : 11 + bits(7);
        for (let at = 0; at < count; at += 1) lengths.push(repeated);
      }
    }
    return [makeCode(lengths.slice(0, numLiterals)), makeCode(lengths.slice(numLiterals))];
  };
  for (let last = 0; !last && written < size; ) {
    last = bits(1);
    const kind = bits(2);
    if (kind === 0) {
      position -= numHeld >> 3; // whole bytes that were taken in advance
      held = 0;
      numHeld = 0;
      const length = input[position] | (input[position + 1] << 8);
      output.set(input.subarray(position + 4, position + 4 + length), written);
      position += 4 + length;
      written += length;
      continue;
    }
    const [literals, distances] = kind === 1 ? [FIXED_LITERALS, FIXED_DISTANCES] : readCodes();
    for (let next = symbol(literals); next !== 256; next = symbol(literals)) {
      if (next < 256) {
        output[written] = next;
        written += 1;
      } else {
        const length = LENGTH_STARTS[next - 257] + bits(LENGTH_EXTRAS[next - 257]);
        const code = symbol(distances);
        const distance = DISTANCE_STARTS[code] + bits(DISTANCE_EXTRAS[code]);
        for (let end = written + length; written < end; written += 1) output[written] = output[written - distance];
      }
    }
  }
  return output;
};

const unpack = (text, size) => {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return inflate(bytes, size);
};
