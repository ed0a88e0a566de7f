package tiertest

import (
	"context"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
)

// Call names a method of a tier for the rule of a Fault.
type Call string

// The calls.
const (
	CallPut    Call = "put"
	CallView   Call = "view"
	CallDelete Call = "delete"
	CallList   Call = "list"
)

// Below is a tier that also lends bytes and deletes many chunks.
type Below interface {
	tiers.Tier
	tiers.Viewer
	tiers.Deleter
}

// Fault is a tier that calls a rule before each call. The rule may wait (a slow
// device), or return an error: EIO and ENOSPC as the contract names them. If After
// wraps the error, the call takes effect and then returns the error: its reply is
// lost.
type Fault struct {
	Below
	rule   func(ctx context.Context, c Call, id moraine.ChunkID) error
	broken atomic.Pointer[moraine.Error]
}

// NewFault wraps a tier. rule may be called concurrently.
func NewFault(below Below, rule func(ctx context.Context, c Call, id moraine.ChunkID) error) *Fault {
	return &Fault{Below: below, rule: rule}
}

// After wraps an error that a rule returns for a call that takes effect.
func After(err error) error { return afterError{err} }

type afterError struct{ error }

func (f *Fault) do(ctx context.Context, c Call, id moraine.ChunkID, run func() error) error {
	if e := f.broken.Load(); e != nil {
		return e
	}
	err := f.rule(ctx, c, id)
	if err == nil {
		return run()
	}
	if after, ok := err.(afterError); ok {
		if err := run(); err != nil {
			return err
		}
		err = after.error
	}
	if moraine.KindOf(err) == moraine.IOError { // permanent, as the contract says
		f.broken.CompareAndSwap(nil, &moraine.Error{Op: "tiertest", Kind: moraine.IOError, Err: err})
	}
	return err
}

// Put implements tiers.Tier.
func (f *Fault) Put(ctx context.Context, h tiers.Header, data []byte, sums []uint32) error {
	return f.do(ctx, CallPut, h.ID, func() error { return f.Below.Put(ctx, h, data, sums) })
}

// Get implements tiers.Tier.
func (f *Fault) Get(ctx context.Context, id moraine.ChunkID, off int64, dst []byte) (h tiers.Header, err error) {
	err = f.do(ctx, CallView, id, func() error {
		h, err = f.Below.Get(ctx, id, off, dst)
		return err
	})
	return h, err
}

// View implements tiers.Viewer.
func (f *Fault) View(ctx context.Context, id moraine.ChunkID, off, n int64) (v *tiers.View, err error) {
	err = f.do(ctx, CallView, id, func() error {
		v, err = f.Below.View(ctx, id, off, n)
		return err
	})
	if err != nil && v != nil {
		v.Release()
		v = nil
	}
	return v, err
}

// Delete implements tiers.Tier.
func (f *Fault) Delete(ctx context.Context, id moraine.ChunkID, below moraine.LayoutVersion) error {
	return f.do(ctx, CallDelete, id, func() error { return f.Below.Delete(ctx, id, below) })
}

// DeleteAll implements tiers.Deleter.
func (f *Fault) DeleteAll(ctx context.Context, deletions []tiers.Deletion) error {
	id := moraine.ChunkID{}
	if len(deletions) > 0 {
		id = deletions[0].ID
	}
	return f.do(ctx, CallDelete, id, func() error { return f.Below.DeleteAll(ctx, deletions) })
}

// List implements tiers.Tier.
func (f *Fault) List(ctx context.Context, from moraine.ChunkID, limit int) (out []tiers.Header, err error) {
	err = f.do(ctx, CallList, from, func() error {
		out, err = f.Below.List(ctx, from, limit)
		return err
	})
	return out, err
}

// Err implements tiers.Tier.
func (f *Fault) Err() error {
	if e := f.broken.Load(); e != nil {
		return e
	}
	return f.Below.Err()
}
