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
)

// Do carries out a change by itself. done is false for a request that goes to the service, between
// Begin and its end.
func (d *Desk) Do(ctx context.Context, req *wire.MetaRequest) (resp *wire.MetaResponse, done bool, err error) {
	if d == nil || !d.engaged.Load() {
		return nil, false, nil
	}
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_Create:
		return d.carryOut(ctx, func() (*wire.MetaResponse, error) { return d.create(op.Create) })
	case *wire.MetaRequest_Remove:
		return d.carryOut(ctx, func() (*wire.MetaResponse, error) { return d.remove(op.Remove) })
	case *wire.MetaRequest_Rename:
		return d.carryOut(ctx, func() (*wire.MetaResponse, error) { return d.rename(op.Rename) })
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
