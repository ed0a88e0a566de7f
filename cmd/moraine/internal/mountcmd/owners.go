package mountcmd

import (
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/fuse/idmap"
)

// owners are the flags that map users and groups.
type owners struct {
	users, groups rangesFlag
	uid, gid      idFlag
}

func (o *owners) addFlags(f *pflag.FlagSet) {
	f.Var(&o.users, "map-uid", "user CLUSTER of the cluster is user LOCAL on this node, and so are the COUNT users from there on (default 1). "+
		"It may be given several times. User LOCAL of the cluster needs a number too, such as with LOCAL:CLUSTER")
	f.Var(&o.groups, "map-gid", "--map-uid of groups")
	f.Var(&o.uid, "uid", "user to whom all files belong on this node. New files belong in the cluster to who makes them")
	f.Var(&o.gid, "gid", "--uid of groups")
}

// apply puts the flags into cfg.
func (o *owners) apply(cfg *fuse.Config) (err error) {
	if cfg.IDs.Users, err = idmap.New(o.users, o.uid.id); err != nil {
		return cli.UsageError("--map-uid: %v", errors.Unwrap(err))
	}
	if cfg.IDs.Groups, err = idmap.New(o.groups, o.gid.id); err != nil {
		return cli.UsageError("--map-gid: %v", errors.Unwrap(err))
	}
	return nil
}

// rangesFlag is a flag that takes a range each time that it is given.
type rangesFlag []idmap.Range

// String implements pflag.Value.
func (r *rangesFlag) String() string {
	var all []string
	for _, x := range *r {
		all = append(all, x.String())
	}
	return strings.Join(all, " ")
}

// Set implements pflag.Value.
func (r *rangesFlag) Set(v string) error {
	numbers := [3]uint32{2: 1}
	fields := strings.Split(v, ":")
	ok := len(fields) == 2 || len(fields) == 3
	for i := 0; ok && i < len(fields); i++ {
		n, err := strconv.ParseUint(fields[i], 10, 32)
		numbers[i], ok = uint32(n), err == nil
	}
	if !ok {
		return cli.UsageError("%q: write CLUSTER:LOCAL or CLUSTER:LOCAL:COUNT, all of them numbers, such as 1000:2000", v)
	}
	*r = append(*r, idmap.Range{Cluster: numbers[0], Local: numbers[1], Count: numbers[2]})
	return nil
}

// Type implements pflag.Value.
func (r *rangesFlag) Type() string { return "CLUSTER:LOCAL[:COUNT]" }

// idFlag is a flag that takes the number of a user or a group.
type idFlag struct{ id *uint32 } // nil: not given

// String implements pflag.Value.
func (f *idFlag) String() string {
	if f.id == nil {
		return ""
	}
	return strconv.FormatUint(uint64(*f.id), 10)
}

// Set implements pflag.Value.
func (f *idFlag) Set(v string) error {
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil || n == 1<<32-1 { // which chown takes for "leave it"
		return cli.UsageError("%q: write the number of a user or a group", v)
	}
	f.id = new(uint32(n))
	return nil
}

// Type implements pflag.Value.
func (f *idFlag) Type() string { return "ID" }
