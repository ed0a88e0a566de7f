package chunkserver

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport/wire"
)

// fetchTimeout limits one read of a piece from the bucket.
const fetchTimeout = 2 * time.Minute

type pieceKey struct{ object, number uint64 }

// piece is one piece in memory, or being fetched.
type piece struct {
	key   pieceKey
	ready chan struct{} // closed when data or err is set
	buf   *bufpool.Buffer
	data  []byte
	sums  []uint32 // of its blocks, as verified at their arrival
	err   error

	rotten bool          // data no longer matches sums; guarded by pieces.mu, as are the fields below
	refs   int           // number of readers
	idle   *list.Element // in pieces.idle while refs is 0
}

// pieces reads pieces of objects, each once for all callers that wait at the time.
// It caches the most recently read ones while there is memory for them.
type pieces struct {
	deps    Deps
	pool    *bufpool.Pool
	fetched limit.Resource // a piece that is being read from the bucket
	asks    chan stageAsk
	reports *objectReports
	// keptKey is the key at which an object is kept after another object needed its
	// own key.
	keptKey func(object uint64) string

	records recordCache
	asked   askedSet

	mu      sync.Mutex // guards the fields below
	life    context.Context
	fetches sync.WaitGroup // added to under mu, while life runs
	held    map[pieceKey]*piece
	idle    list.List // of *piece; the most recently read is in front
	waiting int       // fetches that wait for memory
}

func newPieces(limitBytes int64, bucket string, deps Deps, keptKey func(object uint64) string) *pieces {
	return &pieces{deps: deps, keptKey: keptKey, pool: bufpool.New(bufpool.Config{LimitBytes: limitBytes, Wait: waitFor("memory of pieces", deps)}), asks: make(chan stageAsk, maxAsks),
		fetched: limit.Resource{Name: "piece that is being read from the bucket", Patience: fetchTimeout, Advice: "look for a slow bucket",
			Reports: limit.NewReporter(deps.Log, deps.Metrics.WaitsExceeded)},
		held: make(map[pieceKey]*piece), reports: newObjectReports(bucket)}
}

// start allows fetches until ctx ends; ended waits for the last of them.
func (p *pieces) start(ctx context.Context) (ended func()) {
	p.mu.Lock()
	p.life = ctx
	p.mu.Unlock()
	return func() {
		p.mu.Lock()
		p.life = nil
		p.mu.Unlock()
		p.fetches.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		for p.idle.Len() > 0 {
			p.dropIdle()
		}
		p.pool.Close()
	}
}

// get returns a piece, which the caller releases. A caller that stops waiting does
// not stop the fetch: others may wait for it, or need it next.
func (p *pieces) get(ctx context.Context, key pieceKey) (*piece, error) {
	pc, err := p.join(key)
	if err != nil {
		return nil, err
	}
	if err := p.await(ctx, pc); err != nil {
		p.release(pc)
		return nil, err
	}
	if pc.err != nil {
		p.release(pc)
		return nil, pc.err
	}
	return pc, nil
}

// await waits until a fetch of the piece has ended.
func (p *pieces) await(ctx context.Context, pc *piece) error {
	select {
	case <-pc.ready:
		return nil
	default:
	}
	return p.fetched.Wait(ctx, func(ctx context.Context) error {
		select {
		case <-pc.ready:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// join finds the piece, or starts to fetch it.
func (p *pieces) join(key pieceKey) (*piece, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pc := p.held[key]
	if pc == nil {
		if p.life == nil {
			return nil, &moraine.Error{Op: "chunkserver.GetPiece", Kind: moraine.Unavailable, Err: errors.New("not serving")}
		}
		pc = &piece{key: key, ready: make(chan struct{})}
		p.held[key] = pc
		life := p.life
		p.fetches.Go(func() { p.fetch(life, pc) })
	}
	if pc.idle != nil {
		p.idle.Remove(pc.idle)
		pc.idle = nil
	}
	pc.refs++
	return pc, nil
}

// release releases a piece. The piece stays cached, unless it failed or a fetch
// waits for its memory.
func (p *pieces) release(pc *piece) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pc.refs--
	if pc.refs > 0 {
		return
	}
	select {
	case <-pc.ready:
	default:
		return // the fetch will see that it has no readers
	}
	p.settle(pc)
}

// settle caches or frees a ready piece without readers. The caller holds mu.
func (p *pieces) settle(pc *piece) {
	if pc.err != nil {
		return // already dropped, and without a buffer
	}
	if pc.rotten {
		pc.buf.Release()
		return
	}
	pc.idle = p.idle.PushFront(pc)
	if p.waiting > 0 || p.life == nil {
		p.dropIdle()
	}
}

// discard drops a piece damaged in memory: the next caller has it read again. The
// caller reads the piece, and releases it.
func (p *pieces) discard(pc *piece, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pc.rotten {
		return
	}
	pc.rotten = true
	if p.held[pc.key] == pc {
		delete(p.held, pc.key)
	}
	p.deps.Metrics.PiecesRotten.Inc()
	p.deps.Log.Error("piece checksum mismatch in memory", "object", moraine.ID(pc.key.object), "piece", pc.key.number, "err", err)
}

// sumOf returns the checksum of a range of a piece by the checksums of its arrival.
// It verifies the blocks that the range cuts, and with verify all blocks.
func (pc *piece) sumOf(off, n int64, verify bool) (uint32, error) {
	const block = moraine.BlockSize
	length := int64(len(pc.data))
	for i := off / block; i*block < off+n; i++ {
		end := min((i+1)*block, length)
		if !verify && i*block >= off && end <= off+n {
			continue
		}
		if got := crc.Sum(pc.data[i*block : end]); got != pc.sums[i] {
			return 0, &moraine.Error{Op: "chunkserver.GetPiece", Kind: moraine.Corrupt,
				Err: fmt.Errorf("block %d has CRC32C %08x in memory, but arrived with %08x", i, got, pc.sums[i])}
		}
	}
	return crc.Range(pc.data[off:off+n], pc.sums, off, length), nil
}

// dropIdle frees the least recently read idle piece, and reports whether there was
// one. The caller holds mu.
func (p *pieces) dropIdle() bool {
	last := p.idle.Back()
	if last == nil {
		return false
	}
	pc := p.idle.Remove(last).(*piece)
	pc.idle = nil
	delete(p.held, pc.key)
	pc.buf.Release()
	return true
}

// fetch reads a piece, and wakes the callers that wait for it.
func (p *pieces) fetch(life context.Context, pc *piece) {
	ctx, cancel := context.WithTimeout(life, fetchTimeout)
	defer cancel()
	buf, sums, err := p.read(ctx, pc.key)
	p.deps.Metrics.PieceFetches.WithLabelValues(outcome(err)).Inc()
	p.mu.Lock()
	defer p.mu.Unlock()
	pc.err = err
	if err != nil {
		delete(p.held, pc.key) // the next caller retries
	} else {
		pc.buf, pc.data, pc.sums = buf, buf.Bytes(), sums
	}
	close(pc.ready)
	if pc.refs == 0 {
		p.settle(pc)
	}
	p.deps.Metrics.PieceMemory.Set(float64(p.pool.Stats().InUseBytes))
}

// read reads a piece from the bucket. If the object is no longer at its key, read
// reads its record again once, since the object may have moved. sums are the
// checksums of its blocks.
func (p *pieces) read(ctx context.Context, key pieceKey) (buf *bufpool.Buffer, sums []uint32, err error) {
	rec, err := p.recordOf(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	n := min(rec.object.Piece, rec.object.Size-key.number*rec.object.Piece)
	if buf, err = p.memory(ctx, int(n)); err != nil {
		return nil, nil, err
	}
	sums, err = p.readInto(ctx, rec, key, buf.Bytes())
	switch moraine.KindOf(orNil(err)) {
	case moraine.NotFound, moraine.Conflict, moraine.Corrupt:
		p.records.forget(key.object)
		if rec, err = p.recordOf(ctx, key); err == nil {
			if sums, err = p.readEither(ctx, rec, key, buf.Bytes()); err != nil {
				p.reports.met(rec.object, key.number*rec.object.Piece, err, p.deps.Clock.Now())
			}
			err = lost(err)
		}
	}
	if err != nil {
		buf.Release()
		return nil, nil, err
	}
	return buf, sums, nil
}

// readEither is readInto by a fresh record. A record of restored metadata may be
// older than the move of the object to its kept key. Only the object of that number
// is ever put there.
func (p *pieces) readEither(ctx context.Context, rec *objectRecord, key pieceKey, dst []byte) (sums []uint32, err error) {
	sums, err = p.readInto(ctx, rec, key, dst)
	switch moraine.KindOf(orNil(err)) {
	case moraine.NotFound, moraine.Conflict, moraine.Corrupt:
		if kept := p.keptKey(key.object); kept != "" && !rec.object.GetKept() {
			if sums, keptErr := p.readAt(ctx, object.Ref{Key: kept}, rec, key, dst); keptErr == nil {
				return sums, nil
			}
		}
	}
	return sums, err
}

// lost names the error of an object that is missing in the bucket.
func lost(err error) error {
	if err == nil {
		return nil
	}
	switch moraine.KindOf(err) {
	case moraine.NotFound, moraine.Conflict:
		return &moraine.Error{Op: "chunkserver.GetPiece", Kind: moraine.Lost,
			Err: fmt.Errorf("the object in the bucket is missing or differs from its record: %w", err)}
	}
	return err
}

func (p *pieces) recordOf(ctx context.Context, key pieceKey) (*objectRecord, error) {
	rec, err := p.records.get(ctx, p.deps.Meta, recordKey{key.object, key.number / sumBlock})
	if err == nil && (key.number*rec.object.Piece >= rec.object.Size || !rec.covers(key.number)) {
		err = &moraine.Error{Op: "chunkserver.GetPiece", Kind: moraine.Internal, Err: fmt.Errorf("piece %d has no recorded checksum", key.number)}
	}
	return rec, err
}

// readInto fills dst with a piece, and returns the checksums of its blocks.
// Combined, they equal the recorded checksum.
func (p *pieces) readInto(ctx context.Context, rec *objectRecord, key pieceKey, dst []byte) (sums []uint32, err error) {
	o := rec.object
	return p.readAt(ctx, object.Ref{Key: o.Key, Version: o.Version, ETag: o.Etag}, rec, key, dst)
}

// readAt is readInto of an object that may be at another key than its record says.
func (p *pieces) readAt(ctx context.Context, r object.Ref, rec *objectRecord, key pieceKey, dst []byte) (sums []uint32, err error) {
	if err := p.deps.Pace(ctx, int64(len(dst))); err != nil {
		return nil, err
	}
	if err = p.deps.Bucket.Get(ctx, r, int64(key.number*rec.object.Piece), dst); err != nil {
		return nil, err
	}
	sums = crc.Blocks(make([]uint32, 0, crc.BlockCount(int64(len(dst)))), dst)
	if got, want := crc.CombineBlocks(sums, int64(len(dst))), rec.sum(key.number); got != want {
		return nil, &moraine.Error{Op: "chunkserver.GetPiece", Ref: r.Key, Kind: moraine.Corrupt,
			Err: fmt.Errorf("piece checksum mismatch: piece %d has CRC32C %08x, recorded is %08x", key.number, got, want)}
	}
	return sums, nil
}

// memory lends a buffer. It evicts pieces without readers, and waits if all have
// readers.
func (p *pieces) memory(ctx context.Context, n int) (*bufpool.Buffer, error) {
	p.mu.Lock()
	p.waiting++ // every release from now on frees memory
	for {
		if buf := p.pool.TryGet(n); buf != nil {
			p.waiting--
			p.mu.Unlock()
			return buf, nil
		}
		if !p.dropIdle() {
			break
		}
	}
	p.mu.Unlock()
	p.deps.Metrics.PieceWaits.Inc()
	buf, err := p.pool.Get(ctx, n)
	p.mu.Lock()
	p.waiting--
	p.mu.Unlock()
	return buf, err
}

// record returns the record of the object and the checksums around an offset.
func (p *pieces) record(ctx context.Context, id, offset uint64) (*objectRecord, error) {
	rec, err := p.records.get(ctx, p.deps.Meta, recordKey{id, 0})
	if err != nil {
		return nil, err
	}
	if block := offset / rec.object.Piece / sumBlock; block > 0 {
		return p.records.get(ctx, p.deps.Meta, recordKey{id, block})
	}
	return rec, nil
}

// objectRecord is an object's record, and one block of its checksums.
type objectRecord struct {
	object *wire.Object
	first  uint64
	sums   []uint32
}

func (r *objectRecord) covers(number uint64) bool {
	return number >= r.first && number-r.first < uint64(len(r.sums))
}

func (r *objectRecord) sum(number uint64) uint32 { return r.sums[number-r.first] }

type recordKey struct{ object, block uint64 }

// recordCache caches the most recently used records.
type recordCache struct {
	mu      sync.Mutex // guards the fields below
	records map[recordKey]*objectRecord
}

// maxRecords limits the cache; each record has up to 16 KiB of checksums.
const maxRecords = 1024

func (c *recordCache) get(ctx context.Context, meta metaDoer, key recordKey) (*objectRecord, error) {
	c.mu.Lock()
	rec := c.records[key]
	c.mu.Unlock()
	if rec != nil {
		return rec, nil
	}
	resp, err := meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetObject{GetObject: &wire.GetObject{
		Object: key.object, FirstSum: key.block * sumBlock, Sums: sumBlock}}})
	if err != nil {
		if errors.Is(err, moraine.NotFound) {
			err = &moraine.Error{Op: "chunkserver.GetPiece", Ref: moraine.ID(key.object).String(), Kind: moraine.Stale, Err: err}
		}
		return nil, err
	}
	o := resp.GetObject().GetObject()
	if o.GetPiece() == 0 || o.GetPiece() > maxPiece {
		return nil, &moraine.Error{Op: "chunkserver.GetPiece", Ref: moraine.ID(key.object).String(), Kind: moraine.Internal,
			Err: fmt.Errorf("recorded piece size of %d bytes is invalid", o.GetPiece())}
	}
	rec = &objectRecord{object: o, first: key.block * sumBlock, sums: resp.GetObject().GetSums()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.records == nil || len(c.records) >= maxRecords {
		c.records = make(map[recordKey]*objectRecord) // all are cheap to read again
	}
	c.records[key] = rec
	return rec, nil
}

// metaDoer is the metadata service.
type metaDoer interface {
	Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error)
}

// forget drops the cached records of an object.
func (c *recordCache) forget(object uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.records {
		if key.object == object {
			delete(c.records, key)
		}
	}
}
