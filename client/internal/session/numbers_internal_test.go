package session

import (
	"context"
	"crypto/rand"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// counting is a metadata service that opens sessions, and answers Done. It keeps what it got.
type counting struct {
	transport.Dialer
	sessions uint64
	got      []*wire.MetaRequest
	expired  bool // the next request finds its session expired
}

func (d *counting) Metadata([]string) transport.Metadata { return d }

// Do implements transport.Metadata.
func (d *counting) Do(_ context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if req.GetOpenSession() != nil {
		d.sessions++
		return &wire.MetaResponse{Result: &wire.MetaResponse_Session{Session: &wire.SessionReply{
			Session: d.sessions, TermMillis: 60_000, Cluster: make([]byte, 16), Root: 1}}}, nil
	}
	d.got = append(d.got, req)
	if d.expired {
		d.expired = false
		return nil, &moraine.Error{Kind: moraine.SessionExpired}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Done{Done: &wire.Done{}}}, nil
}

func (d *counting) last() *wire.MetaRequest { return d.got[len(d.got)-1] }

func connect(t *testing.T) (*Conn, *counting) {
	t.Helper()
	d := &counting{}
	m := New(Config{Metadata: [][]string{{"a:1"}}, AttemptTimeout: 5 * time.Second, Patience: 2 * time.Minute},
		Deps{Dialer: d, Clock: clock.System{}, Log: slog.New(slog.DiscardHandler), Metrics: metrics.NewMetrics(nil), Random: rand.Reader})
	_, err := m.open(t.Context(), nil)
	require.NoError(t, err)
	return m, d
}

// TestOnlyCommandsAreNumbered: a read, a question to the leader and a report of a server wait for
// no number, and the state keeps no answer to them.
func TestOnlyCommandsAreNumbered(t *testing.T) {
	m, d := connect(t)
	for _, c := range []struct {
		req      *wire.MetaRequest
		numbered bool
	}{
		{&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{}}}, true},
		{&wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{}}}, false},
		{&wire.MetaRequest{Op: &wire.MetaRequest_ListRevoked{ListRevoked: &wire.ListRevoked{}}}, false},
		{&wire.MetaRequest{Op: &wire.MetaRequest_StartScrub{StartScrub: &wire.StartScrub{}}}, false},
		{&wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: &wire.Heartbeat{}}}, false},
		{&wire.MetaRequest{Op: &wire.MetaRequest_ResolveStep{ResolveStep: &wire.ResolveStep{}}}, false},
		{&wire.MetaRequest{Op: &wire.MetaRequest_ResolveStep{ResolveStep: &wire.ResolveStep{Fix: true}}}, true},
	} {
		_, err := m.Do(t.Context(), c.req)
		require.NoError(t, err)
		require.Equal(t, c.numbered, d.last().Number != 0, "%T", c.req.Op)
	}
	_, err := m.Do(t.Context(), &wire.MetaRequest{})
	require.ErrorIs(t, err, moraine.InvalidArgument)
}

// TestAbandonedNumbersAreReportedOnce: a command that the state machine applied has told it of the
// abandoned numbers, whatever the command is. A request that the leader may answer by itself has
// not.
func TestAbandonedNumbersAreReportedOnce(t *testing.T) {
	for _, c := range []struct {
		req      *wire.MetaRequest
		reported bool
	}{
		{&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{}}}, true},
		{&wire.MetaRequest{Op: &wire.MetaRequest_Concat{Concat: &wire.Concat{}}}, true},
		{&wire.MetaRequest{Op: &wire.MetaRequest_SealPart{SealPart: &wire.SealPart{}}}, true},
		{&wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{}}}, false},
	} {
		m, d := connect(t)
		w := m.Current().numbers
		_, err := w.take(t.Context()) // stays unfinished
		require.NoError(t, err)
		lost, err := w.take(t.Context())
		require.NoError(t, err)
		w.end(lost, true)
		for try := range 2 {
			_, err := m.Do(t.Context(), c.req)
			require.NoError(t, err)
			require.Equal(t, try == 0 || !c.reported, slices.Equal([]uint64{lost}, d.last().Abandoned), "%T: %v", c.req.Op, d.last())
		}
	}
}

// TestWhatASessionOwnsIsNotReleasedUnderAnother: the release of a read lease that ended with its
// session must not end a lease of the next session.
func TestWhatASessionOwnsIsNotReleasedUnderAnother(t *testing.T) {
	m, d := connect(t)
	d.expired = true
	_, err := m.Do(t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_ReleaseStep{ReleaseStep: &wire.ReleaseStep{}}})
	require.ErrorIs(t, err, moraine.SessionExpired)
	require.Len(t, d.got, 1, "it was sent again under session %d", d.sessions)
}
