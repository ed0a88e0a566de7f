package transport

import (
	"context"
	"errors"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

var (
	errStuck    = errors.New("peer does not accept data")
	errSilent   = errors.New("no data received from the peer")
	errShutdown = errors.New("shutting down")
	errIdle     = errors.New("idle")
)

// LeaderHint is the cause of a NotLeader error if the answering node knows the
// leader. Find it with errors.As.
type LeaderHint struct {
	ID        string
	Addresses []string
}

func (h *LeaderHint) Error() string {
	return "the leader is " + h.ID + " at " + strings.Join(h.Addresses, ", ")
}

// ErrorToWire returns err for a message; nil for nil. An error that is no
// *moraine.Error becomes Internal, or Canceled or Timeout if its context ended.
func ErrorToWire(err error) *wire.Error {
	if err == nil {
		return nil
	}
	var e *moraine.Error
	_ = errors.As(err, &e) // nil where there is none
	w := wire.ErrorToWire(err, e, wire.MaxText)
	var hint *LeaderHint
	if errors.As(err, &hint) {
		w.LeaderId, w.Leader = hint.ID, hint.Addresses
	}
	return w
}

// ErrorFromWire returns the *moraine.Error in w; nil for nil. errors.As finds a
// LeaderHint in it.
func ErrorFromWire(w *wire.Error) error {
	if w == nil {
		return nil
	}
	e := &moraine.Error{Op: w.Op, Ref: w.Ref}
	if w.Kind <= uint32(^moraine.Kind(0)) {
		e.Kind = moraine.Kind(w.Kind)
	}
	switch {
	case len(w.Leader) > 0 || w.LeaderId != "":
		e.Err = &LeaderHint{ID: w.LeaderId, Addresses: w.Leader}
	case w.Text != "":
		e.Err = errors.New(w.Text)
	}
	return e
}

// gaveUp returns the error of a call whose ctx ended.
func gaveUp(ctx context.Context, op, ref string) error {
	kind := moraine.Canceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = moraine.Timeout
	}
	return &moraine.Error{Op: op, Ref: ref, Kind: kind}
}

// kindName is the outcome of err, as a label of a metric.
func kindName(err error) string {
	if err == nil {
		return "ok"
	}
	return moraine.KindOf(err).String()
}
