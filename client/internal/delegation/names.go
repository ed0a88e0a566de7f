package delegation

import (
	"context"
	"errors"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// What Do must not carry out goes to the service, and what it cannot carry out yet waits.
var (
	errPlain = errors.New("the request goes to the service")
	errWait  = errors.New("the request waits for the desk")
	// errHeld is errWait for a change, and errPlain for a read: a request to the service is changing it.
	errHeld = errors.New("a request is changing the inode")
	// errLent is errWait for the end of loans to kernels.
	errLent = errors.New("kernels may answer names of the directory")
)

// call is a change that the desk carries out.
type call struct {
	awaited bool     // loans of names that it changes are over
	settle  []uint64 // inodes whose attributes kernels may have
}

// Do carries out a change by itself. done is false for a request that goes to the service, between
// Begin and its end.
func (d *Desk) Do(ctx context.Context, req *wire.MetaRequest) (resp *wire.MetaResponse, done bool, err error) {
	if d == nil || !d.engaged.Load() {
		return nil, false, nil
	}
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_Create:
		return d.carryNames(ctx, req, func(c *call) (*wire.MetaResponse, error) { return d.create(op.Create, c) })
	case *wire.MetaRequest_Remove:
		d.awaitAsked(ctx, op.Remove.Parent)
		return d.carryNames(ctx, req, func(c *call) (*wire.MetaResponse, error) { return d.remove(op.Remove, c) })
	case *wire.MetaRequest_Rename:
		d.awaitAsked(ctx, op.Rename.Parent, op.Rename.NewParent)
		return d.carryNames(ctx, req, func(c *call) (*wire.MetaResponse, error) { return d.rename(op.Rename, c) })
	case *wire.MetaRequest_SetAttr:
		return d.carryOut(ctx, func() (*wire.MetaResponse, error) { return d.setAttr(op.SetAttr) })
	case *wire.MetaRequest_Commit:
		return d.commit(ctx, op.Commit)
	}
	return nil, false, nil
}

// carryOut calls act, with the mutex held, until it need not wait.
func (d *Desk) carryOut(ctx context.Context, act func() (*wire.MetaResponse, error)) (resp *wire.MetaResponse, done bool, err error) {
	waited := d.until(ctx, func() bool {
		resp, err = act()
		return !errors.Is(err, errWait) && !errors.Is(err, errHeld)
	})
	switch {
	case waited != nil:
		return nil, true, waited
	case errors.Is(err, errPlain):
		return nil, false, nil
	}
	return resp, true, err
}

// carryNames is carryOut for a request that changes names, of which kernels may have some.
func (d *Desk) carryNames(ctx context.Context, req *wire.MetaRequest, act func(*call) (*wire.MetaResponse, error)) (resp *wire.MetaResponse, done bool, err error) {
	c := &call{}
	try := func() (*wire.MetaResponse, error) {
		c.settle = c.settle[:0]
		return act(c)
	}
	resp, done, err = d.carryOut(ctx, try)
	if errors.Is(err, errLent) {
		d.Service.AwaitLent(ctx, req)
		c.awaited = true
		resp, done, err = d.carryOut(ctx, try)
	}
	if done && err == nil && len(c.settle) > 0 {
		d.Service.Settle(ctx, c.settle)
	}
	return resp, done, err
}

// fail is an error of a change, as the service would answer it.
func fail(op, ref string, kind moraine.Kind) error {
	return &moraine.Error{Op: op, Ref: ref, Kind: kind}
}

// isName reports whether the service takes a name.
func isName(s string) bool {
	return s != "" && s != "." && s != ".." && len(s) <= moraine.MaxNameLen && !strings.ContainsAny(s, "/\x00")
}

func entryReply(a *wire.Attr) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Entry{Entry: &wire.EntryReply{Attr: a}}}
}
