package client

import (
	"context"
	"errors"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport/wire"
)

// maxCommitRecords bounds the state records that one commit touches, so that the leader applies
// each log entry quickly. A stripe counts one for itself, one for its extent, one for each
// chunk, and some for its grant.
const maxCommitRecords = 600

// CommitResult is what a commit reached.
type CommitResult struct {
	// Attr is the file as of the commit.
	Attr Attr
	// Protects is how many hosts (devices, on a single host) may be lost at once without losing a
	// byte: the minimum over all stripes. It means nothing for an empty file.
	Protects int
	// CRC is the CRC32C of all bytes of the file, computed when the client encoded them. It
	// combines the checksums against which servers and readers verify the bytes. A caller that
	// computed its own checksum can compare.
	CRC uint32
	// Degraded counts the stripes with less protection than their scheme promises. The cluster
	// repairs them when it can.
	Degraded int
}

// commitLog collects, in order, the stripes of a file that are on chunkservers, and commits
// several in one log entry.
type commitLog struct {
	mu      sync.Mutex // held across commits, which happen in order
	arrived map[int][]stripeio.SentStripe
	next    int                   // sequence number after the last ready one
	ready   []stripeio.SentStripe // in order, not committed
	// Results of the commits so far:
	generation uint64
	committed  bool // at least one committed bytes
	final      bool // the last commit was tried and may have taken effect
	crc        uint32
	protects   uint32
	degraded   uint32
}

// add takes the stripes of one launch. Once enough consecutive stripes are in place it commits
// them to the unlinked file.
func (l *commitLog) add(f *File, seq int, sent []stripeio.SentStripe) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arrived[seq] = sent
	for {
		s, ok := l.arrived[l.next]
		if !ok {
			break
		}
		delete(l.arrived, l.next)
		l.next++
		l.ready = append(l.ready, s...)
	}
	for {
		n := batchOf(l.ready)
		if n == len(l.ready) {
			return nil // Commit sends what may be the last batch
		}
		if _, err := l.commit(f.life, f, n, nil); err != nil {
			return err
		}
	}
}

// batchOf returns how many of the stripes go into one commit.
func batchOf(s []stripeio.SentStripe) int {
	records := 0
	for i := range s {
		records += 3 + len(s[i].Record.Chunks)
		if records > maxCommitRecords {
			return i
		}
	}
	return len(s)
}

// finish commits the remaining stripes, with the file's name if it gets one.
func (l *commitLog) finish(ctx context.Context, f *File, link *wire.LinkTarget) (*wire.Attr, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		n := batchOf(l.ready)
		if n < len(l.ready) {
			if _, err := l.commit(ctx, f, n, nil); err != nil {
				return nil, err
			}
			continue
		}
		if attr, err := l.commit(ctx, f, n, &finalCommit{link}); attr != nil || err != nil {
			return attr, err
		}
	}
}

// finalCommit marks the last commit of a save.
type finalCommit struct{ link *wire.LinkTarget }

// commit appends the first n ready stripes to the file, in one log entry. If the service
// refuses the commit because devices went out, the client resubmits the stripes, up to a limit.
// Then commit returns nil twice, and the caller cuts the ready stripes into entries again. A
// smaller scheme may have made more of them. The caller holds the mutex.
func (l *commitLog) commit(ctx context.Context, f *File, n int, final *finalCommit) (*wire.Attr, error) {
	attr, err := l.commitOnce(ctx, f, n, final)
	switch {
	case n == 0 || !retry.IsKind(err, moraine.Stale):
		return attr, err
	case stripeio.MostResubmits(l.ready[:n]) >= stripeio.ResubmitTries:
		return nil, stripeio.RefusedAgain(err)
	}
	f.c.log.Info("commit refused; resubmitting its stripes", "inode", f.sender.Inode, "err", err)
	old, rest := l.ready[:n], l.ready[n:]
	l.ready, l.final = rest, false // Resubmit settles these stripes or restores them
	sent, perr := f.sender.Resubmit(ctx, old, f.sender.Send)
	if perr != nil {
		return nil, stripeio.CannotResubmit(err, perr)
	}
	l.ready = append(sent, rest...)
	return nil, nil
}

// commitOnce sends one such commit.
func (l *commitLog) commitOnce(ctx context.Context, f *File, n int, final *finalCommit) (*wire.Attr, error) {
	op := &wire.Commit{Inode: f.attr.Inode, ExpectGeneration: l.generation, Mode: wire.CommitMode_COMMIT_MODE_APPEND}
	var offset uint64
	for _, s := range l.ready[:n] {
		op.Stripes = append(op.Stripes, s.Record)
		op.Promised = max(op.Promised, s.Ticket.Grant.Promised())
		op.Extents = append(op.Extents, &wire.Extent{Offset: offset, Length: s.Record.Length, Stripe: s.Record.Id})
		offset += s.Record.Length
	}
	op.Level = levelOf(op.Stripes)
	if final != nil {
		l.final = true
		op.Final, op.Link = true, final.link
	}
	// The session owns the grants and the unlinked file. Under another session the service would
	// answer the commit as if they had never existed.
	resp, err := f.c.meta.DoUnder(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: op}}, f.session)
	if err != nil {
		return nil, err
	}
	r := resp.GetCommit()
	if r.GetAttr() == nil {
		return nil, retry.BadReply("commit")
	}
	for _, s := range l.ready[:n] {
		f.c.io.Grants.Settle(s.Ticket, true)
		l.crc = crc.Combine(l.crc, s.Crc, int64(s.Record.Length))
	}
	if n > 0 {
		if !l.committed || r.Protects < l.protects {
			l.protects = r.Protects
		}
		l.committed = true
		l.degraded += r.Degraded
	}
	l.ready = l.ready[n:]
	l.generation = r.Attr.Generation
	return r.Attr, nil
}

// drop releases the grants of all stripes that were not committed.
func (l *commitLog) drop(f *File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.sender.Release(l.ready)
	for _, s := range l.arrived {
		f.sender.Release(s)
	}
	l.ready, l.arrived = nil, nil
}

// orphaned reports whether the file has committed bytes that will never be visible.
func (l *commitLog) orphaned() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.committed && !l.final
}

// Flush sends all written bytes and returns when they are on chunkservers, but not committed.
// The caller may then change memory that it gave to WriteStable. The last stripe may be shorter
// because of it.
func (f *File) Flush(ctx context.Context) error {
	defer f.boundBy(ctx)()
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.broken()
	if err == nil {
		err = f.launch()
	}
	f.sending.Wait()
	if err == nil {
		err = f.broken()
	}
	return f.fail("client.Flush", err)
}

// Commit makes all written bytes durable at the file's level. Unless the file was created
// unlinked, it also gives the file its name. Both happen in one step that others see whole or
// not at all. Commit ends the File, also on error; the written bytes are then discarded. After
// Timeout, Canceled or SessionExpired it is unknown whether the file has its name; after any
// other error it has not.
func (f *File) Commit(ctx context.Context) (CommitResult, error) {
	began := f.c.clock.Now()
	attr, err := f.commit(ctx)
	if err != nil {
		f.fail("client.Commit", err)
		f.Abort()
		return CommitResult{}, f.wrap("client.Commit", err)
	}
	f.c.metrics.CommitSeconds.Observe(f.c.clock.Now().Sub(began).Seconds())
	f.close()
	return CommitResult{Attr: Attr{attr}, CRC: f.log.crc, Protects: int(f.log.protects), Degraded: int(f.log.degraded)}, nil
}

func (f *File) commit(ctx context.Context) (*wire.Attr, error) {
	st, ok, err := f.takeSmall()
	if err != nil {
		return nil, err
	}
	if ok {
		attr, err := f.named(ctx, func() (*wire.Attr, error) { return f.log.finishSmall(ctx, f, st) })
		f.putBack(st)
		if !retry.IsKind(err, moraine.NoSpace) && !retry.IsKind(err, moraine.TooLarge) {
			return attr, err
		}
	}
	if err := f.Flush(ctx); err != nil {
		return nil, err
	}
	defer f.boundBy(ctx)()
	f.mu.Lock()
	err = f.need()
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return f.named(ctx, func() (*wire.Attr, error) { return f.log.finish(ctx, f, f.link) })
}

// named calls finish, and calls it again if the file's directory was removed and made again.
func (f *File) named(ctx context.Context, finish func() (*wire.Attr, error)) (*wire.Attr, error) {
	for tries := 0; ; tries++ {
		attr, err := finish()
		if !retry.IsKind(err, moraine.NotFound) || f.link == nil || f.parents == nil || tries == parentTries {
			return attr, err
		}
		parent, perr := f.parents(ctx)
		if perr != nil || uint64(parent) == f.link.Parent {
			return nil, errors.Join(err, perr) // the directory still exists
		}
		f.link.Parent = uint64(parent)
	}
}

// parentTries bounds the commits of a file whose directory others remove again and again.
const parentTries = 100

// boundBy makes the file fail when ctx ends, until the caller calls the returned function.
func (f *File) boundBy(ctx context.Context) func() {
	stop := context.AfterFunc(ctx, func() { f.fail("client.Write", retry.ContextError(ctx, "")) })
	return func() { stop() }
}

// Abort discards a file that was not committed, and returns when no request for it is running.
// After Commit, or a first Abort, it does nothing.
func (f *File) Abort() {
	f.mu.Lock()
	ended := f.ended
	f.mu.Unlock()
	if ended {
		return
	}
	f.end(&moraine.Error{Op: "client.Write", Ref: f.ref, Kind: moraine.Canceled, Err: errAborted})
	f.close()
	if f.log.orphaned() && f.session == f.c.meta.Current() {
		f.c.io.Grants.Truncate(f.Inode())
	}
}

// close waits for the file's background work and releases all its resources.
func (f *File) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.sending.Wait()
	f.drop(f.cur, f.ticket)
	f.cur, f.ticket = nil, nil
	f.log.drop(f)
	f.end(errEnded)
	f.c.io.Writes.Leave(filling{f})
}

var (
	errEnded   = errors.New("the file was committed or aborted")
	errAborted = errors.New("the file was aborted")
)
