package record

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/morainefs/moraine"
)

var updateGolden = flag.Bool("state.update", false, "rewrite the golden files")

// valueKind has a sample of one kind of value, and a decoder that encodes the decoded value again.
type valueKind struct {
	name   string
	sample []byte
	again  func([]byte) ([]byte, error)
}

var codecs = append([]valueKind{
	{"cluster", (&Cluster{Uuid: moraine.UUID{1, 2, 15: 16}, Incarnation: 1, FeatureLevel: 3}).Encode(), func(b []byte) ([]byte, error) {
		var c Cluster
		err := c.Decode(b)
		return c.Encode(), err
	}},
	{"counters", (&Counters{1, 2, 300, CWall: 1 << 60}).Encode(), func(b []byte) ([]byte, error) {
		var c Counters
		if len(b) > 1 && b[1] < byte(counters1) {
			return b, fmt.Errorf("of another build") // readable, but this build writes all counters
		}
		err := c.Decode(b)
		return c.Encode(), err
	}},
	{"counters-2", (&Counters{CInode: 4, CObject: 1}).Encode(), func(b []byte) ([]byte, error) {
		var c Counters
		if len(b) > 1 && b[1] < byte(counters1) {
			return b, fmt.Errorf("of another build")
		}
		err := c.Decode(b)
		return c.Encode(), err
	}},
	{"sum", Sum{1 << 63, 2}.Encode(), func(b []byte) ([]byte, error) {
		s, err := DecodeSum(b)
		return s.Encode(), err
	}},
	{"sum-mark", SumMark{1 << 40, Sum{1 << 63, 2}}.Encode(), func(b []byte) ([]byte, error) {
		s, err := DecodeSumMark(b)
		return s.Encode(), err
	}},
	{"session", (&Session{Node: "c1", Role: "client", Root: moraine.RootInode, Scope: "/a", ReadOnly: true, Nonce: bytes.Repeat([]byte{7}, 16), Opened: 99, AckedBelow: 1000}).Encode(), func(b []byte) ([]byte, error) {
		var s Session
		err := s.Decode(b)
		return s.Encode(), err
	}},
	{"session-principal", (&Session{Node: "c1", Principal: Principal{1, 2, 3}, Role: "client", Root: moraine.RootInode, Scope: "/a", Nonce: bytes.Repeat([]byte{7}, 16), Opened: 99, AckedBelow: 1000, Leases: true,
		answers: answers{Number: 1001, Answer: []byte("answer"), Apart: 2}}).Encode(), func(b []byte) ([]byte, error) {
		var s Session
		err := s.Decode(b)
		return s.Encode(), err
	}},
	{"session-answer", (&Session{Node: "c1", Role: "client", Root: moraine.RootInode, Scope: "/a", ReadOnly: true, Nonce: bytes.Repeat([]byte{7}, 16), Opened: 99, AckedBelow: 1000, Leases: true, Opens: true,
		answers: answers{Number: 1003, Answer: []byte("an answer"), Apart: 2}}).Encode(), func(b []byte) ([]byte, error) {
		var s Session
		err := s.Decode(b)
		return s.Encode(), err
	}},
	{"file", (&Inode{Typ: TypeFile, Mode: 0o644, Uid: 1000, Gid: 100, Nlink: 1, Tenant: 2, Parent: moraine.RootInode, Atime: 1, Mtime: -2, Ctime: 3,
		Size: 1 << 40, Stored: 1 << 39, Generation: 1<<56 | 9, Level: moraine.NVMe, Degraded: 2, Content: 77, Refs: 3, LastEnd: 1 << 38}).Encode(), againInode},
	{"orphan", (&Inode{Typ: TypeFile, KeptBy: 2, Linger: 300, From: 1<<40 | 7, Generation: 1}).Encode(), againInode},
	{"linger", EncodeLinger(1<<40 | 7), encodes(DecodeLinger, EncodeLinger)},
	{"unlinked", (&Inode{Typ: TypeFile, Owner: 5, Generation: 1}).Encode(), againInode},
	{"directory", (&Inode{Typ: TypeDirectory, Mode: 0o755, Nlink: 3, Entries: 12, ManyLinks: true}).Encode(), againInode},
	{"delegated-directory", (&Inode{Typ: TypeDirectory, Mode: 0o755, Nlink: 2, Name: "d", Parent: 1, Delegate: 1<<40 | 2}).Encode(), againInode},
	{"symlink", (&Inode{Typ: TypeSymlink, Mode: 0o777, Nlink: 1, Target: "../x"}).Encode(), againInode},
	{"fifo", (&Inode{Typ: TypeFifo, Mode: 0o622, Nlink: 1, Parent: 1<<40 | 7, Name: "p"}).Encode(), againInode},
	{"socket", (&Inode{Typ: TypeSocket, Mode: 0o755, Nlink: 1}).Encode(), againInode},
	{"char-device", (&Inode{Typ: TypeChar, Mode: 0o666, Nlink: 1, Rdev: 1<<8 | 3, Name: "null"}).Encode(), againInode},
	{"block-device", (&Inode{Typ: TypeBlock, Mode: 0o660, Gid: 6, Nlink: 2, ManyLinks: true, Rdev: 259<<8 | 1<<20}).Encode(), againInode},
	{"file-of-several-names", (&Inode{Typ: TypeFile, Nlink: 2, Generation: 1<<56 | 9, ManyLinks: true, Parent: 1<<40 | 7, Name: "f", Xattrs: true}).Encode(), againInode},
	{"clean-file", (&Inode{Typ: TypeFile, Nlink: 1, Size: 9, Stored: 9, Generation: 1<<56 | 2, Level: moraine.Object, Content: 78, Refs: 1, LastEnd: 9,
		Parent: 1<<40 | 7, Name: "g", Object: 1<<40 | 5, ObjectGen: 1<<56 | 2, Evicted: 9, Inline: 200}).Encode(), againInode},
	{"directory-with-policy", (&Inode{Typ: TypeDirectory, Nlink: 2, Parent: 1<<40 | 7, Name: "d", Policy: true}).Encode(), againInode},
	{"xattr", EncodeXattr([]byte("value")), func(b []byte) ([]byte, error) {
		v, err := DecodeXattr(b)
		return EncodeXattr(v), err
	}},
	{"dentry", Dentry{Inode: 1<<40 | 5, Typ: TypeFile}.Encode(), func(b []byte) ([]byte, error) {
		e, err := DecodeDentry(b)
		return e.Encode(), err
	}},
	{"ref", Ref{Table: 1<<40 | 3, Base: 1 << 20}.Encode(), func(b []byte) ([]byte, error) {
		r, err := DecodeRef(make([]byte, 8), b)
		return r.Encode(), err
	}},
	{"table", TableHead{Refs: 2, Count: 256, Bytes: 1 << 32, Sealed: true}.Encode(), func(b []byte) ([]byte, error) {
		h, err := DecodeTableHead(b)
		return h.Encode(), err
	}},
	{"extent", EncodeExt(moraine.Extent{Length: 1 << 24, Stripe: 1<<40 | 8, StripeOffset: 4096}), func(b []byte) ([]byte, error) {
		e, err := DecodeExt(make([]byte, 8), b, 0)
		return EncodeExt(e), err
	}},
	{"table-with-objects", TableHead{Refs: 1, Count: 2, Bytes: 1 << 32, Evicted: 1 << 20, Inline: 300}.Encode(), func(b []byte) ([]byte, error) {
		h, err := DecodeTableHead(b)
		return h.Encode(), err
	}},
	{"extent-inline", EncodeExt(moraine.Extent{Length: 16 << 10, Inline: 1<<40 | 8, StripeOffset: 300}), func(b []byte) ([]byte, error) {
		e, err := DecodeExt(make([]byte, 8), b, 0)
		return EncodeExt(e), err
	}},
	{"extent-of-object", EncodeExt(moraine.Extent{Length: 1 << 24, Object: 1<<40 | 8, StripeOffset: 4096}), func(b []byte) ([]byte, error) {
		e, err := DecodeExt(make([]byte, 8), b, 0)
		return EncodeExt(e), err
	}},
	{"grant", (&Grant{First: 1<<40 | 1, Count: 12, Session: 1<<40 | 2, Tenant: 3, Chunks: 6, Length: 4 << 20, Used: []byte{0xff, 1}, EndedAt: 10, EndedSince: 20}).Encode(), func(b []byte) ([]byte, error) {
		g, err := DecodeGrant(b)
		return g.Encode(), err
	}},
	{"stripe", EncodeStripe(&moraine.Stripe{Scheme: moraine.Copies(2), Version: 4, Tenant: 1, Length: 100, LiveBytes: 90, RefCount: 2, Origin: 1<<40 | 9, KeyID: 6, MemoryAt: 300,
		Chunks: []moraine.ChunkState{{Device: 3, CRC: 0xdeadbeef, Level: moraine.NVMe}, {Device: 4, CRC: 1, Level: moraine.Memory, Epoch: 17}}}), func(b []byte) ([]byte, error) {
		s, err := DecodeStripe(0, b)
		if err != nil {
			return nil, err
		}
		return EncodeStripe(s), nil
	}},
}, append(clusterCodecs, rowCodecs...)...)

func againInode(b []byte) ([]byte, error) {
	var i Inode
	err := i.Decode(b)
	return i.Encode(), err
}

// The bytes of every kind of value are fixed: every later release reads what an earlier one wrote.
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

// A truncated, extended or newer value is Corrupt, never another value.
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
			if _, err := c.again(b); !errors.Is(err, moraine.Corrupt) {
				t.Errorf("%s of version %d: %v", c.name, v, err)
			}
		}
	}
}

// Every value that a decoder accepts encodes to the same bytes.
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

// The sum depends on every byte of every pair, but not on their order or on the encoding of a kept
// answer.
func TestSum(t *testing.T) {
	var a, b Sum
	pairs := [][2]string{{"\x00\x00\x10k1", "v1"}, {"\x00\x00\x10k2", "v2"}, {"\x00\x00\x10k1v", "1"}}
	for _, p := range pairs {
		a.Add([]byte(p[0]), []byte(p[1]))
	}
	for n := len(pairs) - 1; n >= 0; n-- {
		b.Add([]byte(pairs[n][0]), []byte(pairs[n][1]))
	}
	if a != b {
		t.Error("the sum depends on the order")
	}
	b.Remove([]byte(pairs[0][0]), []byte(pairs[0][1]))
	b.Add([]byte(pairs[0][0]), []byte("v3"))
	if a == b {
		t.Error("the sum misses a value")
	}
	if pairHash([]byte(pairs[0][0]), []byte(pairs[0][1])) == pairHash([]byte(pairs[2][0]), []byte(pairs[2][1])) {
		t.Error("the sum misses where the key ends")
	}
	key := append([]byte{0, 0, TabAnswer}, make([]byte, 16)...)
	if pairHash(key, []byte("x")) != pairHash(key, []byte("y")) {
		t.Error("the sum depends on the encoding of an answer")
	}
	with := func(number uint64, answer string) []byte {
		return (&Session{Node: "c1", AckedBelow: 7, answers: answers{Number: number, Answer: []byte(answer)}}).Encode()
	}
	key = append([]byte{0, 0, TabSession}, make([]byte, 8)...)
	if pairHash(key, with(7, "x")) != pairHash(key, with(7, "longer")) {
		t.Error("the sum depends on the encoding of an answer in a session's record")
	}
	if pairHash(key, with(7, "x")) == pairHash(key, with(8, "x")) {
		t.Error("the sum misses whose answer it is")
	}
}
