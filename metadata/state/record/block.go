package record

// BlockRanks is how many ranks one block of a step counts: a step of many ranks
// is known to be complete, and its missing ones are found, without reading a
// row for each.
const BlockRanks = 1024

// Block counts the sealed ranks of blockRanks consecutive ones.
type Block struct {
	Sealed []byte // a bit for each
	Digest []byte // of all of them, once they have sealed
}

func (b *Block) Encode() []byte { return PutBytes(PutBytes([]byte{partVersion}, b.Sealed), b.Digest) }

func (b *Block) Decode(value []byte) error {
	d := Dec{B: value}
	d.Version(partVersion)
	b.Sealed, b.Digest = d.bytes(), d.bytes()
	return d.End("block of a step")
}

// Blocks is how many blocks a step has, and blockLen how many ranks are in one.
func (s *Step) Blocks() uint32 { return (s.World + BlockRanks - 1) / BlockRanks }

func (s *Step) BlockLen(n uint32) uint32 { return min(BlockRanks, s.World-n*BlockRanks) }
