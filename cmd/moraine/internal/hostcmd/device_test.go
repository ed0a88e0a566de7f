package hostcmd

import (
	"testing"

	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// TestHealthInWords: the text has only what the disk reports.
func TestHealthInWords(t *testing.T) {
	for want, h := range map[string]*wire.DiskHealth{
		"":                     nil,
		"ok, 7% worn, 41 C":    {WornPercent: 7, Celsius: 41},
		"ok, 0% worn, -5 C":    {Celsius: -5},
		"ok, 1% worn":          {WornPercent: 1},
		"it is too hot":        {Text: "it is too hot"},
		"FAILING: it is spent": {Failing: true, Text: "it is spent"},
	} {
		require.Equal(t, want, healthOf(h))
	}
}
