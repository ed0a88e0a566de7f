package mountcmd

import (
	"cmp"
	"strings"

	"github.com/spf13/pflag"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
)

// bandwidth are the flags that bound the bytes a second of a mount.
type bandwidth struct {
	both, read, write rateFlag // 0: no bound
}

func (b *bandwidth) addFlags(f *pflag.FlagSet) {
	f.Var(&b.both, "bandwidth-limit", "most bytes a second that the mount reads from the servers of the cluster, and as many that it writes to them "+
		"(such as 500MB or 2GiB; default: no limit)")
	f.Var(&b.read, "read-limit", "--bandwidth-limit of reads alone")
	f.Var(&b.write, "write-limit", "--bandwidth-limit of writes alone")
}

const (
	// mostCopies is how many bytes move for one byte of a file at most: a put sends three copies, or
	// its parity.
	mostCopies = 3
	// leastRate is the least that the client takes.
	leastRate = 1 << 20
)

// apply puts the flags into cfg, which has the memory and the patience.
func (b *bandwidth) apply(cfg *client.Config) error {
	cfg.ReadBytesPerSecond, cfg.WriteBytesPerSecond = int64(cmp.Or(b.read, b.both)), int64(cmp.Or(b.write, b.both))
	least := max(leastRate, rateFlag(mostCopies*float64(cfg.MemoryBytes)/cfg.Patience.Seconds())+1)
	for _, rate := range []rateFlag{b.read, b.write, b.both} {
		if rate != 0 && rate < least {
			return cli.UsageError("a limit of %s is too low: what --memory holds must move within --patience. Use %s at least, or less --memory", rate.String(), least.String())
		}
	}
	return nil
}

// rateFlag is a flag that takes bytes a second: a size, with or without "/s".
type rateFlag uint64

// String implements pflag.Value. It is empty for 0, so that --help shows no default.
func (r *rateFlag) String() string {
	if *r == 0 {
		return ""
	}
	return cli.Size(uint64(*r)) + "/s"
}

// Set implements pflag.Value.
func (r *rateFlag) Set(v string) error {
	n, err := cli.ParseSize(strings.TrimSuffix(v, "/s"))
	*r = rateFlag(n)
	return err
}

// Type implements pflag.Value.
func (r *rateFlag) Type() string { return "RATE" }
