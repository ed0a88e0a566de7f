package mountcmd

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
)

// mountOfRoot is `moraine mount` below a root command with a flag of all commands.
func mountOfRoot() *cobra.Command {
	root := &cobra.Command{Use: "moraine"}
	root.PersistentFlags().String("certs", "", "")
	root.PersistentFlags().Bool("insecure", false, "")
	command := NewMountCommand(&cli.Env{})
	root.AddCommand(command)
	return command
}

// TestHelperArgs: what mount(8) and mount.fuse pass becomes the flags of `moraine mount`.
func TestHelperArgs(t *testing.T) {
	for name, c := range map[string]struct {
		argv, want []string
	}{
		"plain":         {[]string{"mount.moraine", "moraine://h1,h2/data", "/mnt"}, []string{"mount", "moraine://h1,h2/data", "/mnt"}},
		"of fstab":      {[]string{"/sbin/mount.moraine", "moraine:///", "/mnt", "-o", "rw,_netdev,noauto,nofail,x-systemd.automount,x-systemd.requires=a.service,comment=x"}, []string{"mount", "moraine:///", "/mnt"}},
		"flags":         {[]string{"mount.moraine", "moraine:///", "/mnt", "-o", "ro,allow_other,memory=2GiB,cache_entries=5,bandwidth-limit=500MB/s,certs=/etc/c=d,insecure"}, []string{"mount", "moraine:///", "/mnt", "--read-only", "--allow-other", "--memory=2GiB", "--cache-entries=5", "--bandwidth-limit=500MB/s", "--certs=/etc/c=d", "--insecure"}},
		"a bool":        {[]string{"mount.moraine", "moraine:///", "/mnt", "-o", "allow-other=false"}, []string{"mount", "moraine:///", "/mnt", "--allow-other=false"}},
		"owners":        {[]string{"mount.moraine", "moraine:///", "/mnt", "-o", "map_uid=1000:2000,map-uid=5000:6000:10,gid=0"}, []string{"mount", "moraine:///", "/mnt", "--map-uid=1000:2000", "--map-uid=5000:6000:10", "--gid=0"}},
		"prefetch":      {[]string{"mount.moraine", "moraine:///", "/mnt", "-o", "prefetch=*.safetensors,prefetch=*.bin"}, []string{"mount", "moraine:///", "/mnt", "--prefetch=*.safetensors", "--prefetch=*.bin"}},
		"atimes":        {[]string{"mount.moraine", "moraine:///", "/mnt", "-o", "noatime,nodiratime"}, []string{"mount", "moraine:///", "/mnt", "--noatime"}},
		"the last one":  {[]string{"mount.moraine", "moraine:///", "/mnt", "-o", "noatime,atime,relatime"}, []string{"mount", "moraine:///", "/mnt", "--noatime", "--noatime=false", "--noatime=false"}},
		"twice":         {[]string{"mount.moraine", "-o", "ro", "moraine:///", "/mnt", "-oack=memory"}, []string{"mount", "moraine:///", "/mnt", "--read-only", "--ack=memory"}},
		"of mount(8)":   {[]string{"mount.fuse.moraine", "moraine:///", "/mnt", "-nv", "-r", "-t", "fuse.moraine"}, []string{"mount", "moraine:///", "/mnt", "--read-only"}},
		"of mount.fuse": {[]string{"moraine", "moraine:///", "/mnt", "-o", "rw,dev,suid"}, []string{"mount", "moraine:///", "/mnt"}},
		"type#source":   {[]string{"mount.fuse.moraine", "moraine#moraine:///", "/mnt"}, []string{"mount", "moraine:///", "/mnt"}},
		"sloppy":        {[]string{"mount.moraine", "moraine:///", "/mnt", "-s", "-o", "quota,ro"}, []string{"mount", "moraine:///", "/mnt", "--read-only"}},
		"fake":          {[]string{"mount.moraine", "moraine:///", "/mnt", "-f"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			require.True(t, IsHelperCall(c.argv))
			got, err := HelperArgs(mountOfRoot(), c.argv)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
	for _, argv := range [][]string{{"moraine", "mount", "moraine:///", "/mnt"}, {"moraine", "ls", "moraine:///"}, {"moraine"}, {"moraine", "moraine:///", "/mnt"}, nil} {
		require.False(t, IsHelperCall(argv), argv)
	}
}

// TestHelperNamesWhatIsWrong: an error names the option that is unknown, or lacks its value.
func TestHelperNamesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		argv []string
		says string
	}{
		{[]string{"mount.moraine", "moraine:///", "/mnt", "-o", "ro,noexec"}, `"noexec"`},
		{[]string{"mount.moraine", "moraine:///", "/mnt", "-o", "strictatime"}, `"strictatime"`},
		{[]string{"mount.moraine", "moraine:///", "/mnt", "-o", "norelatime"}, `"norelatime"`},
		{[]string{"mount.moraine", "moraine:///", "/mnt", "-o", "diratime"}, `"diratime"`},
		{[]string{"mount.moraine", "moraine:///", "/mnt", "-o", "memroy=1GiB"}, `"memroy=1GiB"`},
		{[]string{"mount.moraine", "moraine:///", "/mnt", "-o", "foreground"}, `"foreground"`},
		{[]string{"mount.moraine", "moraine:///", "/mnt", "-o", "ready_fd=3"}, `"ready_fd=3"`},
		{[]string{"mount.moraine", "moraine:///", "/mnt", "-o", "memory"}, "memory=VALUE"},
		{[]string{"mount.moraine", "moraine:///", "/mnt", "-x"}, `"-x"`},
		{[]string{"mount.moraine", "moraine:///", "/mnt", "-N", "1"}, "-N"},
		{[]string{"mount.moraine", "moraine:///", "/mnt", "-o"}, "-o"},
		{[]string{"mount.moraine", "moraine:///"}, "mount.moraine SOURCE DIR"},
	} {
		_, err := HelperArgs(mountOfRoot(), c.argv)
		require.ErrorContains(t, err, c.says)
		require.True(t, cli.IsWrongUse(err))
	}
	require.Equal(t, []int{0, 1, 32}, []int{HelperExit(cli.ExitFine), HelperExit(cli.ExitWrongUse), HelperExit(cli.ExitFailed)})
}
