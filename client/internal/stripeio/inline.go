package stripeio

import (
	"container/list"
	"math"
	"sync"

	"github.com/morainefs/moraine"
)

// CopyInline fills dst with the bytes of a file from its beginning on. It fails with Stale unless
// the metadata has them all.
func CopyInline(found []Located, dst []byte) error {
	for _, e := range found {
		if e.Bytes == nil {
			return &moraine.Error{Op: "read", Kind: moraine.Stale}
		}
		at := e.StripeOffset - e.origin
		copy(dst[e.Offset:], e.Bytes[at:at+e.Length])
	}
	return nil
}

// SeedInline records that content is the whole content of the generation, which the metadata has.
// The map keeps content.
func (m *ExtentMap) SeedInline(content []byte) {
	p := page{to: math.MaxInt64, extents: []Located{{Bytes: content, Extent: moraine.Extent{Length: int64(len(content))}}}}
	m.mu.Lock()
	m.pages = []page{p}
	m.mu.Unlock()
	m.c.inline.keep(m.inode, m.generation, p, false)
}

const (
	// maxInlineKept bounds the content of small files that a client keeps, in bytes, and
	// inlineOverhead is what one file counts besides.
	maxInlineKept  = 16 << 20
	inlineOverhead = 512
)

// inlineCache keeps the content of small files that the metadata has, by generation. A generation
// never changes, so an entry is right as long as the caller knows that the file has that
// generation. Safe for concurrent use.
type inlineCache struct {
	mu     sync.Mutex
	of     map[uint64]*list.Element // by inode
	order  list.List                // of *inlineFile, the last used one first
	bytes  int64
	credit int // files that may be read ahead (smallahead.go)
}

type inlineFile struct {
	inode, generation uint64
	page              page
	bytes             int64
	early             bool // it was read ahead, and nobody has read it since
}

// get returns the page of a file's generation, if the cache has it.
func (c *inlineCache) get(inode, generation uint64) (page, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.of[inode]
	if e == nil || e.Value.(*inlineFile).generation != generation {
		return page{}, false
	}
	c.order.MoveToFront(e)
	f := e.Value.(*inlineFile)
	if f.early {
		f.early = false
		c.earn(2)
	}
	return f.page, true
}

// keep adds the page of a file's generation, unless some of the file is elsewhere. early: nobody has read it yet.
func (c *inlineCache) keep(inode, generation uint64, p page, early bool) {
	if p.from != 0 || p.to != math.MaxInt64 || len(p.extents) == 0 {
		return
	}
	f := &inlineFile{inode: inode, generation: generation, page: p, bytes: inlineOverhead, early: early}
	for _, e := range p.extents {
		if e.Bytes == nil {
			return
		}
		f.bytes += int64(len(e.Bytes))
	}
	if f.bytes > moraine.MaxInline+inlineOverhead {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.of[inode]; e != nil {
		if e.Value.(*inlineFile).generation > generation {
			return
		}
		c.drop(e)
	}
	if c.of == nil {
		c.of = map[uint64]*list.Element{}
	}
	c.of[inode] = c.order.PushFront(f)
	for c.bytes += f.bytes; c.bytes > maxInlineKept; {
		c.drop(c.order.Back())
	}
}

func (c *inlineCache) drop(e *list.Element) {
	f := c.order.Remove(e).(*inlineFile)
	delete(c.of, f.inode)
	c.bytes -= f.bytes
}

// Inline returns the bytes of a stripe that was never sent, in one piece.
func (s *Stripe) Inline() []byte {
	out := make([]byte, 0, s.Length)
	for _, g := range s.segs {
		out = append(out, g.b...)
	}
	return out
}
