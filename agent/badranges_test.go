package agent_test

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// TestAFetchReportsBadRanges: the memory of the node changes after the seal. A trainer gets the bytes of the step
// from the cluster, and the agent's log and metric say once what was bad, and where.
func TestAFetchReportsBadRanges(t *testing.T) {
	n := newNode(t, 64<<20)
	var log bytes.Buffer
	n.log, n.metrics = slog.New(slog.NewTextHandler(&log, nil)), agent.NewMetrics(nil)
	n.start(time.Minute)
	p := n.peer(runPath, "one", 1)
	slot := p.sealBytes(1, data(1, 0))
	require.NoError(t, n.wait(1))
	n.eventually(func() bool { return n.states()[1] == agentproto.Committed })
	bad := func() float64 { return count(t, n.metrics.BadRanges.WithLabelValues("local")) }
	fetch := func() {
		t.Helper()
		_, files, err := p.conn.Exchange(t.Context(), &agentproto.Request{Fetch: &agentproto.Fetch{Bytes: partBytes,
			Slices: []agentproto.Slice{{Name: "w0", Offset: []int64{0}, Shape: []int64{partBytes}, Bytes: partBytes}}}})
		require.NoError(t, err)
		got := make([]byte, partBytes)
		_, err = files[0].ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, data(1, 0), got)
		require.NoError(t, files[0].Close())
	}
	require.NoError(t, p.ask(&agentproto.Request{Resolve: &agentproto.Resolve{}}))
	fetch()
	require.Zero(t, bad())
	_, err := slot.WriteAt([]byte{data(1, 0)[200_000] ^ 1}, 200_000)
	require.NoError(t, err)
	fetch()
	require.Equal(t, 1.0, bad())
	fetch()
	require.Equal(t, 1.0, bad(), "it is known")
	require.NoError(t, n.stop())
	require.Regexp(t, `bad range of a step.*run=.*step=1 file=\S+ offset=\d+ bytes=\d+ level=local err=.*corrupt`, log.String())
}
