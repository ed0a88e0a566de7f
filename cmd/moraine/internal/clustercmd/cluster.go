package clustercmd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// NewClusterCommand returns `moraine cluster`.
func NewClusterCommand(env *cli.Env) *cobra.Command {
	return cli.Parent(&cobra.Command{
		Use:     "cluster",
		GroupID: cli.GroupCluster,
		Short:   "Show the state of the whole cluster",
	}, newClusterStatusCommand(env), newClusterUpgradeCommand(env), newQuarantineCommand(env), newLostCommand(env))
}

func newClusterStatusCommand(env *cli.Env) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what is there, what is wrong, and which losses the data would survive now",
		Long: `Show servers, hosts, space and, in words, which losses the data survives now. The
metadata leader collects this from each server after it gets the request, which takes up
to a few seconds. What the leader does not know yet is shown as unknown, never as good.

Exit codes:

  0  green: nothing is wrong and nothing is unknown
  3  unknown, degraded (the cluster works with less protection than promised) or critical
  1  the cluster did not answer

With --wait the command repeats until the cluster is green or the time is over. It also
waits for a cluster that does not answer yet.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait < 0 {
				return cli.UsageError("--wait %s: write a time of 0 or more, such as 1m", wait)
			}
			return waitForStatus(cmd.Context(), env, wait)
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait this long for the cluster to become green")
	return cmd
}

// statusAsk is the least time for one request of `cluster status --wait`: an answer takes
// up to six seconds where a host is silent.
const statusAsk = 10 * time.Second

// waitForStatus prints the status when it is green or wait is over. It waits for a cluster
// that does not answer yet in the same way as for one that is not green.
func waitForStatus(ctx context.Context, env *cli.Env, wait time.Duration) error {
	deadline := time.Now().Add(wait)
	var c *cli.Connection
	defer func() {
		if c != nil {
			_ = c.Close()
		}
	}()
	for {
		s, err := statusBy(ctx, env, &c, wait, deadline)
		if (err != nil && mayPass(err) || err == nil && s.Health != healthGreen) && time.Now().Before(deadline) {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(min(200*time.Millisecond, time.Until(deadline))):
				continue
			}
		}
		if err != nil {
			return err
		}
		if err := printStatus(env, s); err != nil {
			return err
		}
		if s.Health != healthGreen {
			return &cli.ExitError{Code: cli.ExitDegraded}
		}
		return nil
	}
}

// statusBy sends one request, over a connection that it opens where there is none. With
// wait it stops at the deadline, or after statusAsk.
func statusBy(ctx context.Context, env *cli.Env, c **cli.Connection, wait time.Duration, deadline time.Time) (*clusterStatus, error) {
	if wait > 0 {
		least := time.Now().Add(statusAsk)
		if least.After(deadline) {
			deadline = least
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	if *c == nil {
		made, err := env.Dial(ctx)
		if err != nil {
			return nil, err
		}
		*c = made
	}
	return askStatus(ctx, *c)
}

// askStatus requests all that the status needs.
func askStatus(ctx context.Context, c *cli.Connection) (*clusterStatus, error) {
	reply, err := view.GetClusterAs(ctx, c.Client, &wire.GetCluster{Fresh: true})
	if err != nil {
		return nil, err
	}
	s := judge(reply)
	if s.stalled() {
		return s, nil // reads wait in the same way as writes
	}
	lost, err := view.LostFiles(ctx, c)
	if err != nil {
		return nil, err
	}
	s.judgeLost(len(lost))
	return s, nil
}

// mayPass reports whether the same request may succeed later: the group has no leader for a
// moment.
func mayPass(err error) bool {
	switch moraine.KindOf(err) {
	case moraine.Unavailable, moraine.Timeout, moraine.NotLeader:
		return true
	}
	return false
}

func printStatus(env *cli.Env, s *clusterStatus) error {
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, s)
	}
	env.Note("cluster %s is %s", s.Cluster, strings.ToUpper(s.Health))
	for _, f := range s.Findings {
		env.Note("  ! %s", f)
	}
	for _, f := range s.Survives {
		env.Note("  - %s", f)
	}
	for _, f := range s.Notes {
		env.Note("  > %s", f)
	}
	env.Note("")
	var rows []table.Row
	for _, m := range s.Metadata {
		rows = append(rows, table.Row{m.ID, "metadata, " + m.Role, view.Shout(m.Status), "", fmt.Sprintf("applied %d", m.Applied)})
	}
	for _, h := range s.Hosts {
		in := fmt.Sprintf("%d of %d devices in", h.In, h.Devices)
		if h.Endpoint == endpointUnreachable || h.Endpoint == endpointPartly {
			in += "; " + strings.ToUpper(h.Endpoint)
		}
		if h.State == "draining" || strings.HasPrefix(h.State, "maintenance") {
			in += "; " + h.State
		}
		rows = append(rows, table.Row{h.ID, "chunkserver", view.Shout(h.Status), in,
			fmt.Sprintf("%s of %s used, %d chunks", cli.Size(h.Used), cli.Size(h.Capacity), h.Chunks)})
	}
	cli.PrintTable(env.Out, table.Row{"node", "role", "", "", ""}, rows)
	env.Note("\n%d inodes, %d stripes, %d small files with %s in the metadata; %s of %s used; %s waiting for deletion, %s kept for backups, %s "+
		"leaked; %d sessions",
		s.Inodes, s.Stripes, s.InlineFiles, cli.Size(s.InlineBytes), cli.Size(s.Used), cli.Size(s.Capacity), cli.Size(s.PendingBytes), cli.Size(s.KeptBytes), cli.Size(s.LeakedBytes), s.Sessions)
	return nil
}
