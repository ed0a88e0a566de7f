package stripeio

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
)

// verify compares the bytes of a chunk of an encoded stripe with their checksum. Corrupt: they
// changed in this process's memory. Putting them elsewhere does not help, and a new checksum
// would make the damage the content of the file, so the write fails.
func (s *Stripe) verify(index int, zeros []byte) error {
	var sum uint32
	for _, p := range s.payload(index, zeros) {
		sum = crc.Update(sum, p)
	}
	if sum != s.sums[index] {
		return changedInMemory(s.sums[index], sum)
	}
	return nil
}

func changedInMemory(want, got uint32) error {
	return &moraine.Error{Op: "put stripe", Kind: moraine.Corrupt,
		Err: fmt.Errorf("bytes changed in the memory of this process after it computed their checksum: got %08x, want %08x", got, want)}
}
