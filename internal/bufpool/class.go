package bufpool

import (
	"fmt"
	"math/bits"

	"github.com/morainefs/moraine"
)

// Size classes are 1, 2, 3 and 4 blocks, and then four steps to each doubling (5,
// 6, 7, 8, 10, 12, 14, 16, 20 ... blocks). So no buffer wastes more than a fifth of
// itself.
const classes = 46

// classSize returns the bytes of a class.
func classSize(class int) int64 {
	if class < 4 {
		return int64(class+1) * moraine.BlockSize
	}
	doubling, step := (class-4)/4, (class-4)%4
	return int64(5+step) << doubling * moraine.BlockSize
}

// classOf returns the smallest class that holds n bytes.
func classOf(n int) (int, error) {
	if n < 1 || n > MaxSize {
		return 0, &moraine.Error{Op: "bufpool.Get", Kind: moraine.TooLarge,
			Err: fmt.Errorf("buffer of %d bytes is out of range: 1 to %d", n, MaxSize)}
	}
	blocks := (n + moraine.BlockSize - 1) / moraine.BlockSize
	if blocks <= 4 {
		return blocks - 1, nil
	}
	// The steps of doubling d are (5..8)<<d blocks, so that blocks-1 of them
	// has 3+d bits, and its top three bits (4..7) name the step.
	doubling := bits.Len(uint(blocks-1)) - 3
	return 4 + 4*doubling + (blocks-1)>>doubling - 4, nil
}
