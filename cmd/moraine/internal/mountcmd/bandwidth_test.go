package mountcmd

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
)

// TestLimitsOfTheBandwidth: the flags of one direction go before the one of both. A rate at which
// the mount's memory does not move within its patience, three times for redundancy, is refused.
func TestLimitsOfTheBandwidth(t *testing.T) {
	for name, c := range map[string]struct {
		flags       []string
		read, write int64
		says        string // of the error; empty: none
	}{
		"none":      {nil, 0, 0, ""},
		"both":      {[]string{"--bandwidth-limit=500MB"}, 500e6, 500e6, ""},
		"a second":  {[]string{"--bandwidth-limit=2GiB/s"}, 2 << 30, 2 << 30, ""},
		"one":       {[]string{"--write-limit=50MB"}, 0, 50e6, ""},
		"different": {[]string{"--bandwidth-limit=1GB", "--read-limit=2GB"}, 2e9, 1e9, ""},
		"too low":   {[]string{"--read-limit=1MB"}, 0, 0, "7.7 MiB/s at least"},
	} {
		t.Run(name, func(t *testing.T) {
			var b bandwidth
			f := pflag.NewFlagSet("mount", pflag.ContinueOnError)
			b.addFlags(f)
			require.NoError(t, f.Parse(c.flags))
			cfg := client.Config{MemoryBytes: 768 << 20, Patience: 5 * time.Minute}
			err := b.apply(&cfg)
			if c.says != "" {
				require.ErrorContains(t, err, c.says)
				require.True(t, cli.IsWrongUse(err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, []int64{c.read, c.write}, []int64{cfg.ReadBytesPerSecond, cfg.WriteBytesPerSecond})
		})
	}
	var r rateFlag
	require.Error(t, r.Set("fast"))
}
