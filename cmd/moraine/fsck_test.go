package main

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client/fsck"
)

// TestFsckTellsWhatItFoundBeforeItFailed: an error on the way takes away neither what was
// found until then nor its exit code.
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
		"found":            {found(), nil, exitDegraded},
		"found and failed": {found(), failed, exitDegraded},
		"corrupt chunks wait for repair": {func() *fsckResult {
			r := describeFsck(&fsck.Report{})
			r.Waiting = waitsStatus{Counted: 14, Corrupt: 14}
			return r
		}(), nil, exitDegraded},
		"failed":      {describeFsck(&fsck.Report{}), failed, exitFailed},
		"not checked": {describeFsck(&fsck.Report{NotChecked: []fsck.NotChecked{{Host: "n4"}}}), nil, exitFailed},
	} {
		for _, json := range []bool{false, true} {
			var out, errOut bytes.Buffer
			a := &app{out: &out, err: &errOut}
			a.global.json = json
			err := a.fsckEnd(tt.r, true, tt.failed)
			require.Error(t, err, name)
			var exit *exitError
			if errors.As(err, &exit) {
				require.Equal(t, tt.code, exit.code, name)
			} else {
				require.Equal(t, tt.code, exitFailed, name)
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
	require.NoError(t, (&app{out: &bytes.Buffer{}, err: &bytes.Buffer{}}).fsckEnd(r, false, nil))
}
