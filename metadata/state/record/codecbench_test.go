package record

import (
	"testing"

	"github.com/morainefs/moraine"
)

// hotCodecs are the records that most commands read and write. Their codecs must stay fast.
var hotCodecs = []struct {
	name   string
	encode func() []byte
	decode func([]byte) error
}{
	{"inode", hotInode.Encode, func(b []byte) error { return new(Inode).Decode(b) }},
	{"directory", hotDirectory.Encode, func(b []byte) error { return new(Inode).Decode(b) }},
	{"dentry", hotDentry.Encode, func(b []byte) error { _, err := DecodeDentry(b); return err }},
	{"ref", hotRef.Encode, func(b []byte) error { _, err := DecodeRef(hotKey, b); return err }},
	{"table", hotTable.Encode, func(b []byte) error { _, err := DecodeTableHead(b); return err }},
	{"extent", func() []byte { return EncodeExt(hotExtent) }, func(b []byte) error { _, err := DecodeExt(hotKey, b, 0); return err }},
	{"stripe", func() []byte { return EncodeStripe(hotStripe) }, func(b []byte) error { _, err := DecodeStripe(1, b); return err }},
	{"grant", hotGrant.Encode, func(b []byte) error { _, err := DecodeGrant(b); return err }},
	{"session", hotSession.Encode, func(b []byte) error { return new(Session).Decode(b) }},
	{"counters", hotCounters.Encode, func(b []byte) error { return new(Counters).Decode(b) }},
}

var (
	hotKey   = make([]byte, 8)
	hotInode = &Inode{Typ: TypeFile, Mode: 0o644, Uid: 1000, Gid: 100, Nlink: 1, Tenant: 2, Parent: 1<<40 | 7, Name: "model-00001-of-00004.safetensors",
		Atime: 1 << 60, Mtime: 1 << 60, Ctime: 1 << 60, Size: 1 << 40, Stored: 1 << 39, Generation: 1<<56 | 9, Level: moraine.NVMe, Content: 1 << 20, Refs: 300,
		LastEnd: 1 << 38}
	hotDirectory = &Inode{Typ: TypeDirectory, Mode: 0o755, Nlink: 3, Parent: 1, Name: "step-10", Entries: 12}
	hotDentry    = Dentry{Inode: 1<<40 | 5, Typ: TypeFile}
	hotRef       = Ref{Table: 1<<40 | 3, Base: 1 << 20}
	hotTable     = TableHead{Refs: 2, Count: 256, Bytes: 1 << 32}
	hotExtent    = moraine.Extent{Length: 1 << 24, Stripe: 1<<40 | 8, StripeOffset: 4096}
	hotStripe    = &moraine.Stripe{Scheme: moraine.Scheme{K: 4, M: 2}, Version: 4, Tenant: 1, Length: 16 << 20, LiveBytes: 16 << 20, RefCount: 1, Origin: 1<<40 | 9, KeyID: 6,
		Chunks: []moraine.ChunkState{{Device: 1, CRC: 1, Level: moraine.NVMe}, {Device: 2, CRC: 2, Level: moraine.NVMe}, {Device: 3, CRC: 3, Level: moraine.NVMe},
			{Device: 4, CRC: 4, Level: moraine.NVMe}, {Device: 300, CRC: 5, Level: moraine.NVMe}, {Device: 301, CRC: 6, Level: moraine.Memory, Epoch: 17}}}
	hotGrant   = &Grant{First: 1<<40 | 1, Count: 512, Session: 1<<40 | 2, Tenant: 3, Chunks: 6, Length: 4 << 20, Used: make([]byte, 64)}
	hotSession = &Session{Node: "c1", Principal: Principal{1, 2, 3}, Role: "client", Root: moraine.RootInode, Scope: "/a", Nonce: make([]byte, 16), Opened: 99,
		AckedBelow: 1000, Leases: true, answers: answers{Number: 1001, Answer: make([]byte, 100), Apart: 2}}
	hotCounters = &Counters{1, 2, 300, CWall: 1 << 60, CStuckMoves: 1}
)

var sink []byte

func BenchmarkEncode(b *testing.B) {
	for _, h := range hotCodecs {
		b.Run(h.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sink = h.encode()
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, h := range hotCodecs {
		b.Run(h.name, func(b *testing.B) {
			value := h.encode()
			b.ReportAllocs()
			for b.Loop() {
				if err := h.decode(value); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
