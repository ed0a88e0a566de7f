package fsckcmd

import (
	"bytes"
	"errors"
	"testing"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/internal/fsck"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// TestFsckTellsWhatItFoundBeforeItFailed: after an error on the way, fsck still prints its
// earlier findings and returns their exit code.
func TestFsckTellsWhatItFoundBeforeItFailed(t *testing.T) {
	failed := errors.New("no room for temporary files")
	found := func() *fsckResult {
		return describeFsck(&fsck.Report{Findings: []fsck.Finding{{Fault: fsck.Missing, Device: 7, Host: "n2"}}})
	}
	for name, tt := range map[string]struct {
		r      *fsckResult
		failed error
		code   int
	}{
		"found":            {found(), nil, cli.ExitDegraded},
		"found and failed": {found(), failed, cli.ExitDegraded},
		"corrupt chunks wait for repair": {func() *fsckResult {
			r := describeFsck(&fsck.Report{})
			r.Waiting = view.WaitsStatus{Counted: 14, Corrupt: 14}
			return r
		}(), nil, cli.ExitDegraded},
		"failed":      {describeFsck(&fsck.Report{}), failed, cli.ExitFailed},
		"not checked": {describeFsck(&fsck.Report{NotChecked: []fsck.NotChecked{{Host: "n4"}}}), nil, cli.ExitFailed},
	} {
		for _, json := range []bool{false, true} {
			var out, errOut bytes.Buffer
			env := &cli.Env{Out: &out, Err: &errOut}
			env.Global.JSON = json
			err := fsckEnd(env, tt.r, true, tt.failed)
			require.Error(t, err, name)
			var exit *cli.ExitError
			if errors.As(err, &exit) {
				require.Equal(t, tt.code, exit.Code, name)
			} else {
				require.Equal(t, tt.code, cli.ExitFailed, name)
			}
			if tt.failed != nil {
				require.ErrorIs(t, err, failed, name)
			}
			if tt.r.Waiting.Corrupt > 0 && !json {
				require.Contains(t, out.String(), "14 stripes wait for repair or to be moved: 14 corrupt", name)
				require.NotContains(t, out.String(), "nothing is wrong", name)
			}
			if len(tt.r.Findings) > 0 {
				require.Contains(t, out.String(), "n2", name)
			}
		}
	}
	r := describeFsck(&fsck.Report{})
	r.Clean = true
	require.NoError(t, fsckEnd((&cli.Env{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}), r, false, nil))
}

// fsck does not take a repair queue without a report for an empty one.
func TestFsckTellsOfAQueueThatCannotBeRead(t *testing.T) {
	for _, tt := range []struct {
		c       *wire.ClusterReply
		wrong   int
		counted uint64
	}{
		{&wire.ClusterReply{}, 0, 0},
		{&wire.ClusterReply{RepairQueued: 3}, 1, 0},
		{&wire.ClusterReply{RepairQueued: 3, Waits: &wire.RepairWaits{Counted: 3}}, 0, 3},
	} {
		r := describeFsck(&fsck.Report{})
		r.addWaiting(tt.c)
		require.Len(t, r.Metadata, tt.wrong, tt.c)
		require.Equal(t, tt.counted, r.Waiting.Counted, tt.c)
	}
}
