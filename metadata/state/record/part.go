package record

import (
	"crypto/sha256"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// Part is one rank's part of a checkpoint.
type Part struct {
	Session moraine.SessionID // the session that began it
	Sealed  bool
	Digest  [sha256.Size]byte
	Files   []PartFile
}

// PartFile is one file of a part.
type PartFile struct {
	Inode moraine.InodeID
	Name  string
	Crc   uint32
	Size  uint64
}

const partVersion = 1

// Encode returns the stored value.
func (p *Part) Encode() []byte {
	b := PutFixed64([]byte{partVersion}, uint64(p.Session))
	b = putBool(b, p.Sealed)
	if !p.Sealed {
		return b
	}
	b = append(b, p.Digest[:]...)
	b = PutUvarint(b, uint64(len(p.Files)))
	for _, f := range p.Files {
		b = PutFixed64(b, uint64(f.Inode))
		b = PutString(b, f.Name)
		b = PutFixed32(b, f.Crc)
		b = PutUvarint(b, f.Size)
	}
	return b
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (p *Part) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(partVersion)
	p.Session = moraine.SessionID(d.Fixed64())
	p.Sealed = d.bool()
	if p.Sealed {
		for i := range p.Digest {
			p.Digest[i] = d.Byte()
		}
		for range d.Count(14) {
			p.Files = append(p.Files, PartFile{moraine.InodeID(d.Fixed64()), d.string(), d.fixed32(), d.Uvarint()})
		}
	}
	return d.End("part")
}

// Equal reports whether two parts have the same digest and files.
func (p *Part) Equal(o *Part) bool { return p.Digest == o.Digest && slices.Equal(p.Files, o.Files) }

// ToWire returns the wire form.
func (p *Part) ToWire(rank uint32) *wire.Part {
	w := &wire.Part{Rank: rank, Digest: p.Digest[:]}
	for _, f := range p.Files {
		w.Files = append(w.Files, &wire.PartFile{Inode: uint64(f.Inode), Name: f.Name, Crc: f.Crc, Size: f.Size})
	}
	return w
}
