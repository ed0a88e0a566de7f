package record

import "github.com/morainefs/moraine"

// An orphan is a file that lost its last name while sessions might have it open. Inode.KeptBy counts
// the sessions that keep it. Inode.Linger is the number under which it stays until each session had
// time to keep it, and 0 after that. Inode.From is the directory that named it last.

// Orphan reports whether the inode is a file without a name that sessions keep, or may keep.
func (i *Inode) Orphan() bool { return i.KeptBy > 0 || i.Linger > 0 }

// encodeOrphan appends the fields of an orphan.
func (i *Inode) encodeOrphan(b []byte) []byte {
	if !i.Orphan() {
		return b
	}
	return putFixed64(putUvarint(putUvarint(b, i.KeptBy), i.Linger), uint64(i.From))
}

func (i *Inode) decodeOrphan(d *Dec) {
	i.KeptBy, i.Linger, i.From = d.Uvarint(), d.Uvarint(), moraine.InodeID(d.Fixed64())
}

const lingerVersion = 1

// EncodeLinger returns the row of an orphan that lingers.
func EncodeLinger(id moraine.InodeID) []byte { return EncodeID(lingerVersion, id) }

// DecodeLinger decodes the inode of an orphan that lingers.
func DecodeLinger(b []byte) (moraine.InodeID, error) {
	return DecodeID[moraine.InodeID](lingerVersion, b, "linger")
}
