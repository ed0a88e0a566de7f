package agentproto

import (
	"fmt"
	"net"
	"time"
)

// FrameBounds bounds what one frame costs its receiver: the sender may want to do harm. 0 and nil do not bound.
type FrameBounds struct {
	// Bytes is how long a frame may be.
	Bytes uint32
	// Entries is how many elements its lists may have together, such as the tensors of a seal. Two bytes of a frame can
	// become an entry of a hundred in memory. Numbers in entries do not count: they become eight bytes at most.
	Entries int
	// Patience bounds the time from the first byte of a frame to its last, without that of Admit.
	Patience time.Duration
	// Admit is called with the length of a frame before memory is allocated for it. It may wait.
	Admit func(bytes uint32) error
}

// admit asks for the memory of a frame.
func (b *FrameBounds) admit(c *net.UnixConn, size uint32) error {
	if b.Admit == nil {
		return nil
	}
	if err := b.Admit(size); err != nil {
		return err
	}
	if b.Patience > 0 {
		_ = c.SetReadDeadline(time.Now().Add(b.Patience))
	}
	return nil
}

// check fails if a frame has too many entries.
func (b *FrameBounds) check(body []byte) error {
	if b.Entries == 0 {
		return nil
	}
	if n := entriesOf(body); n > b.Entries {
		return fmt.Errorf("a message with %d entries; %d at most", n, b.Entries)
	}
	return nil
}

// listDepth is where the lists of requests are: {"seal":{"tensors":[. Deeper ones are of numbers.
const listDepth = 3

// entriesOf returns how many elements the lists of a JSON text have together, without those of deeper lists. Of
// other text it may return anything.
func entriesOf(body []byte) (n int) {
	depth, list, quoted := 0, [listDepth + 1]bool{}, false
	inList := func() bool { return depth <= listDepth && depth > 0 && list[depth] }
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			if depth++; depth <= listDepth {
				list[depth] = c == '['
			}
			if inList() {
				n++
			}
		case c == ']' || c == '}':
			if depth--; depth < 0 {
				return n // no JSON
			}
		case c == ',' && inList():
			n++
		}
	}
	return n
}
