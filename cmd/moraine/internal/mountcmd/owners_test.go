package mountcmd

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/fuse"
)

// ownersOf parses flags.
func ownersOf(flags ...string) (cfg fuse.Config, err error) {
	var o owners
	f := pflag.NewFlagSet("mount", pflag.ContinueOnError)
	o.addFlags(f)
	if err := f.Parse(flags); err != nil {
		return cfg, err
	}
	return cfg, o.apply(&cfg)
}

func TestFlagsOfOwners(t *testing.T) {
	cfg, err := ownersOf("--map-uid=1000:2000", "--map-uid", "5000:6000:100", "--map-uid=2000:1000", "--map-uid=6000:5000:100",
		"--map-gid=50:60", "--map-gid=60:50", "--gid", "0")
	require.NoError(t, err)
	require.EqualValues(t, 2000, cfg.IDs.Users.Local(1000))
	require.EqualValues(t, 6099, cfg.IDs.Users.Owner(5099))
	require.EqualValues(t, 60, cfg.IDs.Groups.Local(50))
	require.EqualValues(t, 0, cfg.IDs.Groups.Owner(50))
	for says, flags := range map[string][]string{
		"such as 1000:2000":                 {"--map-uid=1000"},
		"all of them numbers":               {"--map-gid=a:b"},
		"COUNT":                             {"--map-gid=1:2:3:4"},
		"number of a user":                  {"--uid=-1"},
		"number of a user or a group":       {"--gid=4294967295"},
		"--map-uid: the mappings 1000:1:1 ": {"--map-uid=1000:1", "--map-uid=1000:2"},
		"--map-uid: ID 2000 of the cluster": {"--map-uid=1000:2000"},
		"complete the mappings: 60:50:1":    {"--map-gid=50:60"},
		"--map-gid: the mappings 1:2:3 and": {"--map-gid=1:2:3", "--map-gid=9:4"},
	} {
		_, err := ownersOf(flags...)
		require.ErrorContains(t, err, says)
	}
	_, err = ownersOf("--map-uid=1:2:0")
	require.True(t, cli.IsWrongUse(err))
}
