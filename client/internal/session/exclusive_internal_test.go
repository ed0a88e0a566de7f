package session

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport/wire"
)

// The client sends a wanted file however far back it is queued, with all before it. No request
// has more files, or more content, than its bounds.
func TestWhatIsSentNext(t *testing.T) {
	small := &wire.Commit{Inode: 1}
	large := &wire.Commit{Create: &wire.Create{Target: strings.Repeat("x", sendBytes*2/3)}}
	for _, row := range []struct {
		what   string
		queue  int
		wanted []int
		large  []int
		back   bool
		want   []int // number of files in each request
	}{
		{"nothing is wanted", 5, nil, nil, false, nil},
		{"one in the middle", 5, []int{2}, nil, false, []int{3}},
		{"one behind more than a request takes", 100, []int{80}, nil, false, []int{sendBatch, 81 - sendBatch}},
		{"it is given back", 100, nil, nil, true, []int{sendBatch, 100 - sendBatch}},
		{"large contents", 5, []int{4}, []int{1, 2, 3}, false, []int{2, 1, 2}},
	} {
		t.Run(row.what, func(t *testing.T) {
			h := &hold{back: row.back}
			for range row.queue {
				h.queue = append(h.queue, &Made{commit: small})
			}
			for _, i := range row.wanted {
				h.queue[i].wanted = true
			}
			for _, i := range row.large {
				h.queue[i].commit = large
			}
			var got []int
			for n := len(h.next()); n > 0; n = len(h.next()) {
				got, h.queue = append(got, n), h.queue[n:]
			}
			require.Equal(t, row.want, got)
		})
	}
}

// holdOf returns a client's exclusive lease on directory 7, and what it needs.
func holdOf(t *testing.T) (*exclusive, *hold) {
	t.Helper()
	c := newCache(100, clock.System{}, metrics.NewMetrics(nil))
	s := &Session{Id: 3}
	c.standing = standing{session: s.Id, epoch: 1, trusted: true, sent: time.Now(), trust: time.Hour}
	m := &Conn{cache: c}
	m.session.Store(s)
	e := newExclusive(m, c)
	e.spawn = func(func(context.Context)) bool { return true }
	c.exclusive = e
	c.fill(c.ask(), &wire.LeaseGrant{Epoch: 1, Leases: []uint64{7}}, func(f *filling) { f.page(7, "", &wire.ReadDirReply{}) })
	h := e.add(7, s, 1, &wire.HoldReply{Directory: &wire.Attr{Inode: 7}})
	e.ranges = []*numberRange{{session: s, first: 100, count: 2}}
	return e, h
}

// The client caches an answered file only while no other client can have changed it. It does
// not if the request also ended the hold: the recall of another client's change may have
// arrived before the answer.
func TestAnAnswerThatComesAfterARecall(t *testing.T) {
	for _, back := range []bool{false, true} {
		t.Run(fmt.Sprint("given back: ", back), func(t *testing.T) {
			e, h := holdOf(t)
			m, what := e.make(7, "x", NewFile{})
			require.Equal(t, localMade, what)
			c := e.cache
			c.mu.Lock()
			if back {
				e.giveBack(h)
				c.recall([]*wire.Recall{{Number: 1, Touches: []*wire.Touch{{Lease: 7, Inode: m.Attr.Inode, Name: "x", Gone: true}}}})
			}
			c.mu.Unlock()
			require.False(t, e.sent(h, h.queue, []*wire.MetaResponse{{}}, nil))
			c.mu.Lock()
			defer c.mu.Unlock()
			_, known := c.find(7, "x")
			require.Equal(t, !back, known)
		})
	}
}

// The client reports used-up ranges of numbers again if the service did not receive the report:
// a session may have only so many ranges.
func TestSpentNumbersAreReportedAgain(t *testing.T) {
	e, _ := holdOf(t)
	s := e.meta.Current()
	e.ranges[0].next = 2
	require.Equal(t, []uint64{100}, e.spent(s))
	op := &wire.Hold{Directory: 9, Numbers: numberCount, Done: e.spent(s)}
	require.False(t, e.got(&getting{done: make(chan struct{})}, op, 1, s, s, nil, &moraine.Error{Kind: moraine.Busy}))
	require.Equal(t, []uint64{100}, e.spent(s), "it was refused")
	require.True(t, e.got(&getting{done: make(chan struct{})}, op, 1, s, s, &wire.HoldReply{First: 200, Count: 5, Since: 1}, nil))
	require.Empty(t, e.spent(s))
	require.Len(t, e.ranges, 1)
}
