package metadatacmd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// forceReport is what `metadata force-quorum` prints.
type forceReport struct {
	Node      string   `json:"node"`
	Cluster   string   `json:"cluster"`
	Members   []string `json:"members"`
	Voters    int      `json:"voters"`
	LastIndex uint64   `json:"last_index"`
	LastTerm  uint64   `json:"last_term"`
	Appended  string   `json:"last_appended"`
	// Warning is the loss that the command causes, or caused.
	Warning string `json:"warning"`
	Forced  bool   `json:"forced"`
	// Incarnation is at least the number of the new incarnation; SilentHosts are the
	// chunkservers that did not report which incarnations they know.
	Incarnation uint8    `json:"incarnation"`
	SilentHosts []string `json:"silent_hosts"`
}

// forceOptions are the flags of `metadata force-quorum`.
type forceOptions struct {
	offlineOptions
	after uint8
}

func newMetadataForceCommand(env *cli.Env) *cobra.Command {
	var o forceOptions
	cmd := &cobra.Command{
		Use:   "force-quorum",
		Short: "Let a metadata server continue alone after a majority is lost for good",
		Long: `Use this after the disks of a majority of the metadata servers are lost for good. It lets
the one whose --data is left continue alone. The command works on the directory; no server
may run on it. Of several directories, take the one whose last entry is the newest.

Without --i-accept-the-loss the command changes nothing: it shows the last entry of the
directory and what would be lost. With --json that is one report, with a "warning"; read one
without the flag first.

Entries that the lost servers had acknowledged, and this one does not have, are lost. The
metadata gets a new incarnation number, as with "metadata restore". The number is above all
that this directory and the chunkservers know. The command requests it from the
chunkservers (--certs). Where one of them does not answer, or the directory names none, give
--after-incarnation the highest number that an incarnation of this cluster ever had.

The other servers can never take part again with their old --data. Those that run end as
soon as the new incarnation reaches them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return forceQuorum(env, cmd, o) },
	}
	o.flags(cmd)
	cmd.Flags().Uint8Var(&o.after, afterFlag, 0, "highest number that an incarnation of this cluster ever had, for when a "+
		"chunkserver does not answer")
	cmd.Flags().BoolVar(&o.yes, "i-accept-the-loss", false, "do it: abandon all that only the lost "+
		"servers knew")
	return cmd
}

func forceQuorum(env *cli.Env, cmd *cobra.Command, o forceOptions) error {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	sv, err := raftstore.SurveyNode(cfg, raftstore.Deps{})
	if err != nil {
		return err
	}
	known, err := metadata.KnownIn(vfs.OS{}, cfg.Dir)
	if err != nil {
		return err
	}
	hosts := inUse(known.Hosts)
	reported, silent, why := requestIncarnations(cmd.Context(), env, hosts)
	after := max(known.Incarnation, reported, moraine.Incarnation(o.after))
	r := forceReport{Node: sv.Node, Cluster: sv.Cluster.String(), Members: sv.Members, Voters: sv.Voters, LastIndex: sv.LastIndex,
		LastTerm: sv.LastTerm, Warning: "what the others acknowledged after that entry is lost; the others must never run again on their --data",
		Incarnation: uint8(min(after, 254)) + 1, SilentHosts: silent}
	tellForce(env, &r, sv)
	if o.yes {
		if !cmd.Flags().Changed(afterFlag) {
			if err := mayNumber(hosts, silent, why, after); err != nil {
				return err
			}
		}
		if env.Global.JSON { // the report comes when it is done
			fmt.Fprintf(env.Err, "WARNING: %s\n", r.Warning)
		}
		begin, err := metadata.NextIncarnation(after, rand.Reader)
		if err != nil {
			return err
		}
		if _, err := raftstore.ForceAlone(cfg, raftstore.Deps{}, begin); err != nil {
			return err
		}
		r.Forced = true
	}
	if env.Global.JSON {
		if err := cli.PrintJSON(env.Out, r); err != nil {
			return err
		}
	}
	if !o.yes {
		return &cli.ExitError{Code: cli.ExitWrongUse, Err: fmt.Errorf("nothing was changed: give "+
			"--i-accept-the-loss to let %s continue alone with what it has", sv.Node)}
	}
	env.Note("%s continues alone, as incarnation %d: start it, and add others with `moraine metadata add`", sv.Node, r.Incarnation)
	return nil
}

func tellForce(env *cli.Env, r *forceReport, sv raftstore.Survey) {
	old := "at an unknown time"
	if !sv.Appended.IsZero() {
		r.Appended = sv.Appended.UTC().Format(time.RFC3339)
		old = fmt.Sprintf("at %s, %v ago", r.Appended, time.Since(sv.Appended).Round(time.Second))
	}
	env.Note("%s of cluster %s; members: %s", sv.Node, sv.Cluster, strings.Join(sv.Members, ", "))
	env.Note("its last entry is %d of term %d, appended %s", sv.LastIndex, sv.LastTerm, old)
	env.Note("WARNING: %s", r.Warning)
}

// mayNumber fails where the answers do not prove that no incarnation above after ever
// began: a chunkserver is silent, or none is known. A server that was away may have missed
// chunkservers, so a host that is missing there proves nothing.
func mayNumber(hosts []*wire.Host, silent []string, why error, after moraine.Incarnation) error {
	const remedy = "give --after-incarnation the highest number that an incarnation of this cluster " +
		"ever had: %d is the highest known; use it only if the metadata was not restored or forced " +
		"from another directory or backup since"
	switch {
	case len(hosts) == 0:
		return cli.UsageError("nothing was changed: the directory names no chunkserver that could report "+
			"the incarnation of the metadata; "+remedy, after)
	case len(silent) > 0:
		return cli.UsageError("nothing was changed: %s did not report the incarnation of the metadata "+
			"(%v). Start them, and give --certs, or "+remedy,
			strings.Join(silent, ", "), why, after)
	}
	return nil
}

// askTimeout bounds the request to one chunkserver.
const askTimeout = 5 * time.Second

// requestIncarnations requests from chunkservers the highest incarnation that they know. It returns
// those that do not report it, and the reason of the last of them.
func requestIncarnations(ctx context.Context, env *cli.Env, hosts []*wire.Host) (highest moraine.Incarnation, silent []string, why error) {
	silent = []string{}
	if len(hosts) == 0 {
		return 0, silent, nil
	}
	ask, closePool, err := asker(env)
	if err != nil {
		for _, h := range hosts {
			silent = append(silent, h.Id)
		}
		return 0, silent, err
	}
	defer closePool() //nolint:errcheck // a failed close loses nothing
	said := make([]moraine.Incarnation, len(hosts))
	errs := make([]error, len(hosts))
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() { said[i], errs[i] = ask(ctx, h) })
	}
	wg.Wait()
	for i, h := range hosts {
		highest = max(highest, said[i])
		if errs[i] != nil {
			silent, why = append(silent, h.Id), errs[i]
		}
	}
	return highest, silent, why
}

// inUse leaves out hosts all of whose devices are gone for good.
func inUse(hosts []*wire.Host) (out []*wire.Host) {
	for _, h := range hosts {
		serves := func(d *wire.Device) bool { return d.State != wire.DeviceState_DEVICE_STATE_RETIRED }
		if len(h.Devices) == 0 || slices.ContainsFunc(h.Devices, serves) {
			out = append(out, h)
		}
	}
	return out
}

// asker returns a function that sends the request to one chunkserver, over connections of
// this process.
func asker(env *cli.Env) (func(context.Context, *wire.Host) (moraine.Incarnation, error), func() error, error) {
	sec, err := env.Security()
	if err != nil {
		return nil, nil, err
	}
	pool, err := sec.Pool(transport.RoleAdmin, "ops", transport.PoolDeps{})
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, h *wire.Host) (moraine.Incarnation, error) {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		stat, err := pool.Chunks(h.Id, h.Addresses).Stat(ctx, &wire.StatDevices{})
		if err == nil && stat.SeenIncarnation == 0 {
			err = &moraine.Error{Op: "stat", Ref: h.Id, Kind: moraine.Unavailable, Err: errors.New("it knows none yet")}
		}
		return transport.MarkedIncarnation(stat.GetSeenIncarnation(), nil).Number, err
	}, pool.Close, nil
}

// afterFlag is the flag of the highest incarnation so far.
const afterFlag = "after-incarnation"
