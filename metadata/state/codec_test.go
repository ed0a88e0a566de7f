package state

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/morainefs/moraine"
)

var updateGolden = flag.Bool("state.update", false, "rewrite the golden files")

// codec has, for one kind of value, a sample and a decoder that encodes what it
// read again.
type codec struct {
	name   string
	sample []byte
	again  func([]byte) ([]byte, error)
}

var codecs = append([]codec{
	{"cluster", (&cluster{uuid: moraine.UUID{1, 2, 15: 16}, incarnation: 1, featureLevel: 3}).encode(), func(b []byte) ([]byte, error) {
		var c cluster
		err := c.decode(b)
		return c.encode(), err
	}},
	{"counters", (&counters{1, 2, 300, cWall: 1 << 60}).encode(), func(b []byte) ([]byte, error) {
		var c counters
		if len(b) > 1 && b[1] < byte(counters1) {
			return b, fmt.Errorf("of another build") // read, but written with all counters
		}
		err := c.decode(b)
		return c.encode(), err
	}},
	{"counters-2", (&counters{cInode: 4, cNames: 1}).encode(), func(b []byte) ([]byte, error) {
		var c counters
		if len(b) > 1 && b[1] < byte(counters1) {
			return b, fmt.Errorf("of another build")
		}
		err := c.decode(b)
		return c.encode(), err
	}},
	{"sum", Sum{1 << 63, 2}.encode(), func(b []byte) ([]byte, error) {
		s, err := decodeSum(b)
		return s.encode(), err
	}},
	{"sum-mark", sumMark{1 << 40, Sum{1 << 63, 2}}.encode(), func(b []byte) ([]byte, error) {
		s, err := decodeSumMark(b)
		return s.encode(), err
	}},
	{"session", (&session{node: "c1", role: "client", root: moraine.RootInode, scope: "/a", readOnly: true, nonce: bytes.Repeat([]byte{7}, 16), opened: 99, ackedBelow: 1000}).encode(), func(b []byte) ([]byte, error) {
		var s session
		err := s.decode(b)
		return s.encode(), err
	}},
	{"session-principal", (&session{node: "c1", principal: Principal{1, 2, 3}, role: "client", root: moraine.RootInode, scope: "/a", nonce: bytes.Repeat([]byte{7}, 16), opened: 99, ackedBelow: 1000, leases: true,
		answers: answers{inside: true, number: 1001, answer: []byte("answer"), apart: 2}}).encode(), func(b []byte) ([]byte, error) {
		var s session
		err := s.decode(b)
		return s.encode(), err
	}},
	{"session-answer", (&session{node: "c1", role: "client", root: moraine.RootInode, scope: "/a", readOnly: true, nonce: bytes.Repeat([]byte{7}, 16), opened: 99, ackedBelow: 1000, leases: true,
		answers: answers{inside: true, number: 1003, answer: []byte("an answer"), apart: 2}}).encode(), func(b []byte) ([]byte, error) {
		var s session
		err := s.decode(b)
		return s.encode(), err
	}},
	{"file", (&inode{typ: typeFile, mode: 0o644, uid: 1000, gid: 100, nlink: 1, tenant: 2, parent: moraine.RootInode, atime: 1, mtime: -2, ctime: 3,
		size: 1 << 40, stored: 1 << 39, generation: 1<<56 | 9, level: moraine.NVMe, degraded: 2, content: 77, refs: 3, lastEnd: 1 << 38}).encode(), againInode},
	{"unlinked", (&inode{typ: typeFile, owner: 5, generation: 1}).encode(), againInode},
	{"directory", (&inode{typ: typeDirectory, mode: 0o755, nlink: 3, entries: 12, manyLinks: true}).encode(), againInode},
	{"symlink", (&inode{typ: typeSymlink, mode: 0o777, nlink: 1, target: "../x"}).encode(), againInode},
	{"file-of-several-names", (&inode{typ: typeFile, nlink: 2, generation: 1<<56 | 9, manyLinks: true, parent: 1<<40 | 7, name: "f", xattrs: true}).encode(), againInode},
	{"clean-file", (&inode{typ: typeFile, nlink: 1, size: 9, stored: 9, generation: 1<<56 | 2, level: moraine.Object, content: 78, refs: 1, lastEnd: 9,
		parent: 1<<40 | 7, name: "g", object: 1<<40 | 5, objectGen: 1<<56 | 2, evicted: 9}).encode(), againInode},
	{"directory-with-policy", (&inode{typ: typeDirectory, nlink: 2, parent: 1<<40 | 7, name: "d", policy: true}).encode(), againInode},
	{"xattr", encodeXattr([]byte("value")), func(b []byte) ([]byte, error) {
		v, err := decodeXattr(b)
		return encodeXattr(v), err
	}},
	{"dentry", dentry{inode: 1<<40 | 5, typ: typeFile}.encode(), func(b []byte) ([]byte, error) {
		e, err := decodeDentry(b)
		return e.encode(), err
	}},
	{"ref", ref{table: 1<<40 | 3, base: 1 << 20}.encode(), func(b []byte) ([]byte, error) {
		r, err := decodeRef(make([]byte, 8), b)
		return r.encode(), err
	}},
	{"table", tableHead{refs: 2, count: 256, bytes: 1 << 32, sealed: true}.encode(), func(b []byte) ([]byte, error) {
		h, err := decodeTableHead(b)
		return h.encode(), err
	}},
	{"extent", encodeExt(moraine.Extent{Length: 1 << 24, Stripe: 1<<40 | 8, StripeOffset: 4096}), func(b []byte) ([]byte, error) {
		e, err := decodeExt(make([]byte, 8), b, 0)
		return encodeExt(e), err
	}},
	{"table-with-objects", tableHead{refs: 1, count: 2, bytes: 1 << 32, evicted: 1 << 20}.encode(), func(b []byte) ([]byte, error) {
		h, err := decodeTableHead(b)
		return h.encode(), err
	}},
	{"extent-of-object", encodeExt(moraine.Extent{Length: 1 << 24, Object: 1<<40 | 8, StripeOffset: 4096}), func(b []byte) ([]byte, error) {
		e, err := decodeExt(make([]byte, 8), b, 0)
		return encodeExt(e), err
	}},
	{"grant", (&grant{first: 1<<40 | 1, count: 12, session: 1<<40 | 2, tenant: 3, chunks: 6, length: 4 << 20, used: []byte{0xff, 1}, endedAt: 10, endedSince: 20}).encode(), func(b []byte) ([]byte, error) {
		g, err := decodeGrant(b)
		return g.encode(), err
	}},
	{"stripe", encodeStripe(&moraine.Stripe{Scheme: moraine.Copies(2), Version: 4, Tenant: 1, Length: 100, LiveBytes: 90, RefCount: 2, Origin: 1<<40 | 9, KeyID: 6,
		Chunks: []moraine.ChunkState{{Device: 3, CRC: 0xdeadbeef, Level: moraine.NVMe}, {Device: 4, CRC: 1, Level: moraine.Memory, Epoch: 17}}}), func(b []byte) ([]byte, error) {
		s, err := decodeStripe(0, b)
		if err != nil {
			return nil, err
		}
		return encodeStripe(s), nil
	}},
}, append(clusterCodecs, rowCodecs...)...)

func againInode(b []byte) ([]byte, error) {
	var i inode
	err := i.decode(b)
	return i.encode(), err
}

// The bytes of every kind of value are fixed: what a release wrote, every later
// one reads.
func TestGoldenValues(t *testing.T) {
	const file = "testdata/golden/values"
	var have strings.Builder
	for _, c := range codecs {
		fmt.Fprintf(&have, "%s %x\n", c.name, c.sample)
	}
	if *updateGolden {
		if err := os.WriteFile(file, []byte(have.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), have.String()); d != "" {
		t.Errorf("encodings changed (-golden +now):\n%s", d)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(want)), "\n") {
		name, text, _ := strings.Cut(line, " ")
		raw, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range codecs {
			if c.name != name {
				continue
			}
			if again, err := c.again(raw); err != nil || !bytes.Equal(again, raw) {
				t.Errorf("%s: read as %x, %v", name, again, err)
			}
		}
	}
}

// A value cut off, made longer, or of a newer version is Corrupt, never another
// value.
func TestDamagedValues(t *testing.T) {
	for _, c := range codecs {
		for n := range c.sample {
			if _, err := c.again(c.sample[:n]); err == nil {
				t.Errorf("%s cut to %d bytes was taken", c.name, n)
			}
		}
		if _, err := c.again(append(bytes.Clone(c.sample), 0)); err == nil {
			t.Errorf("%s with a byte more was taken", c.name)
		}
		for _, v := range []byte{0, 0x7f} {
			b := bytes.Clone(c.sample)
			b[0] = v
			if _, err := c.again(b); moraineKind(err) != moraine.Corrupt {
				t.Errorf("%s of version %d: %v", c.name, v, err)
			}
		}
	}
}

// Whatever a decoder takes has one encoding: itself.
func FuzzValues(f *testing.F) {
	for n, c := range codecs {
		f.Add(byte(n), c.sample)
	}
	f.Fuzz(func(t *testing.T, which byte, b []byte) {
		c := codecs[int(which)%len(codecs)]
		again, err := c.again(b)
		if err == nil && !bytes.Equal(again, b) {
			t.Errorf("%s: %x was read and is written %x", c.name, b, again)
		}
	})
}

// Keys of one table sort as their numbers do, and no key of one table lies in
// the range of another.
func TestKeysSort(t *testing.T) {
	k := keys{p: 3}
	for _, pair := range [][2][]byte{
		{k.dentry(1, "a"), k.dentry(1, "b")},
		{k.dentry(1, "zzz"), k.dentry(2, "a")},
		{k.ref(9, 255), k.ref(9, 256)},
		{k.answer(1, 255), k.answer(1, 256)},
		{k.tombstone(false, 1, 5, moraine.ChunkID{Stripe: 9}), k.tombstone(false, 1, 6, moraine.ChunkID{Stripe: 1})},
		{k.table(tabInode), k.inode(0)},
		{k.inode(1<<64 - 1), k.table(tabDentry)},
	} {
		if bytes.Compare(pair[0], pair[1]) >= 0 {
			t.Errorf("%x does not sort before %x", pair[0], pair[1])
		}
	}
	if end := prefixEnd([]byte{0, 0xff, 0xff}); !bytes.Equal(end, []byte{1}) {
		t.Errorf("prefixEnd: %x", end)
	}
	if end := prefixEnd([]byte{0xff}); end != nil {
		t.Errorf("prefixEnd of the last prefix: %x", end)
	}
}

// The sum depends on every byte of every pair, on no order, and not on how a
// kept answer happens to be encoded.
func TestSum(t *testing.T) {
	var a, b Sum
	pairs := [][2]string{{"\x00\x00\x10k1", "v1"}, {"\x00\x00\x10k2", "v2"}, {"\x00\x00\x10k1v", "1"}}
	for _, p := range pairs {
		a.add([]byte(p[0]), []byte(p[1]))
	}
	for n := len(pairs) - 1; n >= 0; n-- {
		b.add([]byte(pairs[n][0]), []byte(pairs[n][1]))
	}
	if a != b {
		t.Error("the sum depends on the order")
	}
	b.remove([]byte(pairs[0][0]), []byte(pairs[0][1]))
	b.add([]byte(pairs[0][0]), []byte("v3"))
	if a == b {
		t.Error("the sum misses a value")
	}
	if pairHash([]byte(pairs[0][0]), []byte(pairs[0][1])) == pairHash([]byte(pairs[2][0]), []byte(pairs[2][1])) {
		t.Error("the sum misses where the key ends")
	}
	key := keys{}.answer(1, 1)
	if pairHash(key, []byte("x")) != pairHash(key, []byte("y")) {
		t.Error("the sum depends on the encoding of an answer")
	}
	with := func(number uint64, answer string) []byte {
		return (&session{node: "c1", ackedBelow: 7, answers: answers{inside: true, number: number, answer: []byte(answer)}}).encode()
	}
	key = keys{}.session(1)
	if pairHash(key, with(7, "x")) != pairHash(key, with(7, "longer")) {
		t.Error("the sum depends on the encoding of an answer in a session's record")
	}
	if pairHash(key, with(7, "x")) == pairHash(key, with(8, "x")) {
		t.Error("the sum misses whose answer it is")
	}
}
