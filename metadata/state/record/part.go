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
	// Begun is when that session began it, SealedAt when it sealed; 0: not yet. Wall clock.
	Begun, SealedAt int64
	// Reserved is how many bytes it announced that it will write at most. It is 0 once sealed.
	Reserved uint64
	// Claims is how many groups of slices it was the first to claim.
	Claims uint32
	Sealed bool
	Digest [sha256.Size]byte
	Files  []PartFile
}

// PartFile is one file of a part.
type PartFile struct {
	Inode moraine.InodeID
	Name  string
	Crc   uint32
	Size  uint64
	From  From // of an adopted step
}

const partVersion = 1

// Encode returns the stored value.
func (p *Part) Encode() []byte { return p.fields(encoder(64 + 64*len(p.Files))).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (p *Part) Decode(b []byte) error { return p.fields(decoder(b)).End("part") }

func (p *Part) fields(c *codec) *codec {
	c.version(partVersion)
	fixed64(c, &p.Session)
	fixed64(c, &p.Begun)
	uvarint(c, &p.Reserved)
	uvarint(c, &p.Claims)
	if c.bool(&p.Sealed); !p.Sealed {
		return c
	}
	fixed64(c, &p.SealedAt)
	c.array(p.Digest[:])
	partFiles(c, &p.Files)
	return c
}

// partFiles is a list of files as part of a record.
func partFiles(c *codec, p *[]PartFile) {
	files := list(c, p, 16)
	for i := range files {
		f := &files[i]
		fixed64(c, &f.Inode)
		c.string(&f.Name)
		c.fixed32(&f.Crc)
		uvarint(c, &f.Size)
		uvarint(c, &f.From.Inode)
		uvarint(c, &f.From.Generation)
	}
}

// Equal reports whether two parts have the same digest and files.
func (p *Part) Equal(o *Part) bool { return p.Digest == o.Digest && slices.Equal(p.Files, o.Files) }

// ToWire returns the wire form.
func (p *Part) ToWire(rank uint32) *wire.Part {
	w := &wire.Part{Rank: rank, BegunAt: p.Begun, SealedAt: p.SealedAt}
	if !p.Sealed {
		w.Session, w.Reserved = uint64(p.Session), p.Reserved
		return w
	}
	w.Digest = p.Digest[:]
	for _, f := range p.Files {
		w.Files = append(w.Files, &wire.PartFile{Inode: uint64(f.Inode), Name: f.Name, Crc: f.Crc, Size: f.Size})
	}
	return w
}
