package stripeio

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport/wire"
)

// extentPage is how many extents one request returns.
const extentPage = 1000

// maxPages bounds the pages of one ExtentMap: past it, it drops all.
const maxPages = 64

// ExtentMap is where the bytes of one generation of a file are. It loads pages on demand. Safe
// for concurrent use.
type ExtentMap struct {
	c          *Engine
	inode      uint64
	generation uint64
	Job        moraine.JobID // the mover's job for which the file is read

	loading Turn // locked during a request
	mu      sync.Mutex
	pages   []page // in order of from
	doubted time.Time
}

// page is the service's answer for the range [from, to) of the file.
type page struct {
	from, to int64
	extents  []Located
	permit   permit
}

// Located is an extent with the record of its stripe, with the object in which its StripeOffset
// counts, or with its bytes, which the metadata has.
type Located struct {
	moraine.Extent
	Record *Record
	Object *objectRead
	// Bytes are those of an extent in the metadata, and origin is the StripeOffset of the first.
	Bytes  []byte
	origin int64
}

// NewExtentMap returns the extents of a generation of a file, with none loaded.
func NewExtentMap(c *Engine, inode, generation uint64) *ExtentMap {
	return &ExtentMap{c: c, inode: inode, generation: generation, loading: NewTurn(&c.Limits.extents)}
}

// Find returns the extents that overlap [off, end), in order; between them are holes.
func (m *ExtentMap) Find(ctx context.Context, off, end int64) ([]Located, error) {
	var out []Located
	for off < end {
		p, err := m.page(ctx, off)
		if err != nil {
			return nil, err
		}
		i := sort.Search(len(p.extents), func(i int) bool { return p.extents[i].End() > off })
		for ; i < len(p.extents) && p.extents[i].Offset < end; i++ {
			out = append(out, p.extents[i])
		}
		off = p.to
	}
	return out, nil
}

// page returns the page that covers off.
func (m *ExtentMap) page(ctx context.Context, off int64) (page, error) {
	if p, ok := m.cached(off); ok {
		return p, nil
	}
	if err := m.loading.Lock(ctx); err != nil {
		return page{}, err
	}
	defer m.loading.Unlock()
	if p, ok := m.cached(off); ok {
		return p, nil
	}
	p, err := m.load(ctx, off)
	if err != nil {
		return page{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pages) >= maxPages {
		m.pages = nil
	}
	i := sort.Search(len(m.pages), func(i int) bool { return m.pages[i].from > p.from })
	m.pages = slices.Insert(m.pages, i, p)
	return p, nil
}

func (m *ExtentMap) cached(off int64) (page, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := sort.Search(len(m.pages), func(i int) bool { return m.pages[i].from > off })
	if i == 0 || m.pages[i-1].to <= off {
		return page{}, false
	}
	if p := &m.pages[i-1]; p.permit.expires != 0 && !p.permit.good(m.c) {
		m.pages = slices.Delete(m.pages, i-1, i)
		return page{}, false
	}
	return m.pages[i-1], true
}

// Forget drops all pages: a chunk was not where a record says.
func (m *ExtentMap) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pages = nil
}

// Doubt is Forget, at most every few seconds: a chunk was not where a record says, but the
// bytes could still be read.
func (m *ExtentMap) Doubt() {
	now := m.c.clock.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.doubted) > doubtPause {
		m.pages, m.doubted = nil, now
	}
}

const doubtPause = 5 * time.Second

// load requests a page from the service. Stale: the file has another generation by now.
func (m *ExtentMap) load(ctx context.Context, off int64) (page, error) {
	if p, ok := m.c.inline.get(m.inode, m.generation); ok && m.Job == 0 {
		return p, nil
	}
	asked := &wire.GetExtents{Inode: m.inode, Offset: uint64(off), Limit: extentPage, Generation: m.generation, Job: uint64(m.Job)}
	if m.Job == 0 {
		asked.Also = m.c.smallBeside(m.inode)
	}
	p, attr, err := m.c.pageAt(ctx, asked)
	if err == nil && attr.GetGeneration() != m.generation {
		err = retry.BadReply("get extents")
	}
	if err == nil {
		m.c.inline.keep(m.inode, m.generation, p, false)
	}
	return p, err
}

// pageAt requests a page of extents.
func (e *Engine) pageAt(ctx context.Context, asked *wire.GetExtents) (page, *wire.Attr, error) {
	resp, s, err := e.meta.DoIn(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: asked}})
	if err != nil {
		return page{}, nil, err
	}
	r := resp.GetExtents()
	if r == nil {
		return page{}, nil, retry.BadReply("get extents")
	}
	e.inline.keepAlso(r.Also)
	p, err := pageOf(r, asked.Inode, int64(asked.Offset))
	if err == nil && r.CapabilitiesExpire != 0 {
		p.permit = newPermit(e, s, r.CapabilitiesExpire)
		for _, e := range p.extents {
			if e.Record != nil {
				e.Record.permit = p.permit
			}
		}
	}
	return p, r.Attr, err
}

// pageOf converts an answer that begins at offset off.
func pageOf(r *wire.ExtentsReply, inode uint64, off int64) (page, error) {
	generation := r.GetAttr().GetGeneration()
	stripes := make(map[uint64]*Record, len(r.Stripes))
	for _, w := range r.GetStripes() {
		s, err := RecordFromWire(w)
		if err != nil {
			return page{}, err
		}
		s.inode = inode
		stripes[w.Id] = s
	}
	for _, id := range r.GetLimited() {
		if s := stripes[id]; s != nil {
			s.limited = true
		}
	}
	objects := make(map[uint64]*objectRead, len(r.Objects))
	for _, o := range r.GetObjects() {
		objects[o.Id] = &objectRead{object: o, inode: inode, generation: generation}
	}
	if err := giveCapabilities(r, stripes, objects); err != nil {
		return page{}, err
	}
	p := page{from: off, to: math.MaxInt64, extents: make([]Located, 0, len(r.Extents))}
	last := int64(0)
	for _, w := range r.Extents {
		e := Located{Record: stripes[w.Stripe], Object: objects[w.Object], Extent: moraine.Extent{Offset: int64(w.Offset), Length: int64(w.Length),
			Stripe: moraine.StripeID(w.Stripe), StripeOffset: int64(w.StripeOffset), Inline: moraine.InlineID(w.Inline)}}
		if err := e.takeBytes(w); err != nil {
			return page{}, err
		}
		if err := checkExtent(e, last); err != nil {
			return page{}, err
		}
		last = e.End()
		p.extents = append(p.extents, e)
	}
	if r.More {
		if last <= off {
			return page{}, retry.BadReply("get extents")
		}
		p.to = last
	}
	return p, nil
}

// takeBytes takes the bytes of an extent in the metadata, if they match their checksum.
func (e *Located) takeBytes(w *wire.Extent) error {
	if w.Inline == 0 {
		return nil
	}
	if uint64(len(w.Content)) != w.Length || len(w.Content) > moraine.MaxInline || crc.Sum(w.Content) != w.ContentCrc {
		return &moraine.Error{Op: "get extents", Ref: e.Inline.String(), Kind: moraine.Corrupt,
			Err: fmt.Errorf("%d bytes of content in the metadata do not match their extent of %d bytes or its checksum", len(w.Content), w.Length)}
	}
	e.Bytes, e.origin = w.Content, e.StripeOffset
	return nil
}

// checkExtent refuses an extent that would make a reader return wrong bytes.
func checkExtent(e Located, after int64) error {
	var length int64 // of the stripe or object
	switch {
	case e.Bytes != nil:
		length = e.origin + int64(len(e.Bytes))
	case e.Record != nil && e.Object == nil:
		length = e.Record.Length
	case e.Object != nil && e.Record == nil && e.Object.object.Piece > 0:
		length = int64(e.Object.object.Size)
	}
	if e.Length <= 0 || e.Offset < after || e.StripeOffset < 0 || e.StripeOffset > length-e.Length {
		return &moraine.Error{Op: "get extents", Ref: e.Stripe.String(), Kind: moraine.Corrupt,
			Err: fmt.Errorf("extent of %d bytes at %d does not fit", e.Length, e.Offset)}
	}
	return nil
}
