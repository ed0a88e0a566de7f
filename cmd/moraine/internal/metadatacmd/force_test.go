package metadatacmd

import (
	"errors"
	"testing"

	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// TestForceQuorumAsksForWhatNobodySaid: the command chooses a number by itself only if
// there are chunkservers and all of them have answered.
func TestForceQuorumAsksForWhatNobodySaid(t *testing.T) {
	hosts := []*wire.Host{{Id: "n1"}, {Id: "n2"}}
	require.NoError(t, mayNumber(hosts, nil, nil, 3))
	for name, err := range map[string]error{
		"no chunkserver is known": mayNumber(nil, nil, nil, 3),
		"one is silent":           mayNumber(hosts, []string{"n2"}, errors.New("no answer"), 3),
	} {
		require.ErrorContains(t, err, "nothing was changed", name)
		require.ErrorContains(t, err, "--after-incarnation", name)
		require.ErrorContains(t, err, "3 is the highest known", name)
	}
}
