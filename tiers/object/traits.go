package object

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
)

// Traits are the features that a probe found in a bucket.
type Traits struct {
	// WholeCRC: the store computes the CRC32C of a whole object from the bytes
	// that it received, and reports it. It refuses an upload that does not match.
	// Without it, only reading an object back proves that the store has the bytes
	// that were sent.
	WholeCRC bool
	// IfNoneMatch and IfMatch: a completion evaluates its conditions.
	IfNoneMatch, IfMatch bool
	// IfMatchDelete: a deletion evaluates the ETag that it carries.
	IfMatchDelete bool
	// Versioned: a replaced or deleted object stays as an older version.
	Versioned bool
}

// probeTimeout limits one probe.
const probeTimeout = time.Minute

// probed keeps the result of the probe.
type probed struct {
	mu     sync.Mutex    // guards the fields below
	ended  chan struct{} // of the running probe, closed at its end; nil: none
	err    error         // of the last probe
	done   bool
	traits Traits
}

// Traits returns what the bucket supports. The first successful call probes the
// bucket: it makes some small uploads to a key of Moraine's own, which it removes.
// The probe detects a store that only repeats a CRC from the request, or ignores
// conditions. It continues after ctx ends, so that it leaves nothing behind.
func (b *Bucket) Traits(ctx context.Context) (Traits, error) {
	p := &b.probed
	p.mu.Lock()
	if p.done {
		defer p.mu.Unlock()
		return p.traits, nil
	}
	if p.ended == nil {
		p.ended = make(chan struct{})
		go b.runProbe(p.ended)
	}
	ended := p.ended
	p.mu.Unlock()
	select {
	case <-ended:
	case <-ctx.Done():
		return Traits{}, translate(ctx, "probe", b.URL(), ctx.Err())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return p.traits, nil
	}
	return Traits{}, p.err
}

func (b *Bucket) runProbe(ended chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	t, err := b.probeTraits(ctx)
	b.probed.mu.Lock()
	defer b.probed.mu.Unlock()
	b.probed.traits, b.probed.err, b.probed.done, b.probed.ended = t, err, err == nil, nil
	close(ended)
}

// Known returns what Traits has found; false before that.
func (b *Bucket) Known() (Traits, bool) {
	b.probed.mu.Lock()
	defer b.probed.mu.Unlock()
	return b.probed.traits, b.probed.done
}

// probe is a running probe.
type probe struct {
	*Bucket
	key  string
	data []byte
	sum  uint32
	made []string // versions made, in a versioned bucket
}

func (b *Bucket) probeTraits(ctx context.Context) (t Traits, err error) {
	name := make([]byte, 16)
	if _, err := rand.Read(name); err != nil {
		return t, err
	}
	p := &probe{Bucket: b, key: b.probeKey(hex.EncodeToString(name)), data: name, sum: crc.Sum(name)}
	defer func() {
		// The result holds also if the store does not let the probe remove its
		// object, for want of a permission or because of its retention. The probe
		// is not repeated for that.
		if left := p.clean(context.WithoutCancel(ctx)); left != nil && err == nil && !Refused(left) && !errors.Is(left, moraine.PermissionDenied) {
			err = left
		}
	}()
	if !b.cfg.NoChecksums {
		if t.WholeCRC, err = p.wholeCRC(ctx); err != nil {
			return t, err
		}
	}
	if _, err := p.put(ctx, p.sum, Condition{}); err != nil {
		return t, err
	}
	if t.IfNoneMatch, err = p.holds(ctx, Condition{Free: true}); err != nil {
		return t, err
	}
	if t.IfMatch, err = p.holds(ctx, Condition{ETag: noETag}); err != nil {
		return t, err
	}
	t.Versioned = len(p.made) > 0
	t.IfMatchDelete, err = p.holdsDeletion(ctx)
	return t, err
}

// noETag is an ETag that the probe's object does not have.
const noETag = "0123456789abcdef0123456789abcdef"

// holdsDeletion reports whether a false condition stops a deletion.
func (p *probe) holdsDeletion(ctx context.Context) (bool, error) {
	switch err := p.Delete(ctx, Ref{Key: p.key, ETag: noETag}); {
	case errors.Is(err, moraine.Conflict):
	case err == nil, Refused(err):
		return false, nil
	default:
		return false, err
	}
	// A store that refuses the header with any value is of no use.
	info, err := p.Head(ctx, Ref{Key: p.key})
	if err == nil {
		err = p.Delete(ctx, Ref{Key: p.key, ETag: info.ETag})
	}
	if err != nil && !Refused(err) {
		return false, err
	}
	return err == nil, nil
}

func (b *Bucket) probeKey(name string) string {
	key := ".moraine/probe/" + name
	if b.cfg.Prefix != "" {
		key = b.cfg.Prefix + "/" + key
	}
	return key
}

// put makes an object of one part, with a CRC of the whole that may be wrong.
func (p *probe) put(ctx context.Context, whole uint32, cond Condition) (Info, error) {
	id, err := p.NewUpload(ctx, p.key, nil)
	if err != nil {
		return Info{}, err
	}
	part, err := p.PutPart(ctx, p.key, id, 1, p.data, p.sum)
	if err != nil {
		return Info{}, err
	}
	info, err := p.Complete(ctx, p.key, id, []Part{part}, whole, true, cond)
	if err == nil && info.Version != "" {
		p.made = append(p.made, info.Version)
	}
	return info, err
}

// wholeCRC determines whether the store's CRC of an object is reliable.
func (p *probe) wholeCRC(ctx context.Context) (bool, error) {
	id, err := p.NewUpload(ctx, p.key, nil)
	if err != nil {
		return false, err
	}
	switch _, err := p.PutPart(ctx, p.key, id, 1, p.data, p.sum^1); {
	case err == nil:
		return false, nil // it ignores the checksums of parts
	case !Refused(err):
		return false, err
	}
	for _, claimed := range []uint32{p.sum ^ 1, p.sum} {
		switch _, err := p.put(ctx, claimed, Condition{}); {
		case err == nil:
		case !Refused(err):
			return false, err
		case claimed != p.sum:
			continue // refused, as it should be
		default:
			return false, nil
		}
		info, err := p.Head(ctx, Ref{Key: p.key})
		if err != nil {
			return false, err
		}
		if !info.HasCRC || info.CRC != p.sum {
			return false, nil // no CRC, or the one from the request
		}
	}
	return true, nil
}

// holds reports whether a false condition stops a completion.
func (p *probe) holds(ctx context.Context, cond Condition) (bool, error) {
	_, err := p.put(ctx, p.sum, cond)
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, moraine.Conflict), cond.ETag != "" && errors.Is(err, moraine.NotFound):
		return true, nil
	case Refused(err):
		return false, nil
	}
	return false, err
}

// clean removes what the probe left.
func (p *probe) clean(ctx context.Context) error {
	ids, err := p.Uploads(ctx, p.key)
	for _, id := range ids {
		if aborted := p.Abort(ctx, p.key, id); !errors.Is(aborted, moraine.NotFound) {
			err = errors.Join(err, aborted)
		}
	}
	for _, version := range p.made {
		err = errors.Join(err, p.Delete(ctx, Ref{Key: p.key, Version: version}))
	}
	return errors.Join(err, p.Delete(ctx, Ref{Key: p.key}))
}
