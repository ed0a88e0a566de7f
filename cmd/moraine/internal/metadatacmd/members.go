// Package metadatacmd has the commands below `moraine metadata` that people use: the members,
// backup, restore, status, and force-quorum after the loss of a majority.
//
// One path through it: `moraine metadata ls` -> lookAtMetadata requests the members from the
// leader -> where no server leads it queries each server (survey.go), and says what to do.
package metadatacmd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// memberRow is what `metadata ls` prints of a server.
type memberRow struct {
	ID        string   `json:"id"`
	Addresses []string `json:"addresses"`
	Role      string   `json:"role"` // leader, voter, non-voter, or waiting (to be added)
	Alive     bool     `json:"alive"`
	Match     uint64   `json:"match"`
	Lag       uint64   `json:"lag"`
	Why       string   `json:"no_vote_because,omitempty"`
	Release   string   `json:"release"`
	Level     uint64   `json:"level"` // 0: not known
}

func memberRowOf(m *wire.Member) memberRow {
	r := memberRow{ID: m.Id, Addresses: m.Addresses, Role: "voter", Alive: m.Alive, Match: m.Match, Lag: m.Lag, Why: m.Why,
		Release: m.Status.GetRelease(), Level: m.Status.GetLevel()}
	if r.Addresses == nil {
		r.Addresses = []string{}
	}
	switch {
	case m.Waiting:
		r.Role = "waiting"
	case m.Leader:
		r.Role = "leader"
	case !m.Voter:
		r.Role = "non-voter"
	}
	return r
}

func newMetadataListCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the metadata servers",
		Long: `List the metadata servers: which one leads, which vote, and how many entries of the log each
still lacks. A server that is "waiting" was started with --join and is not a member yet:
"moraine metadata add" makes it one.

Where no server leads, the command queries each one, as "moraine metadata status" does.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return lookAtMetadata(cmd.Context(), env, func(reply *wire.MembersReply) error { return printMembers(env, reply) }, func(sv survey) error {
				if !env.Global.JSON {
					return printSurvey(env, sv)
				}
				for _, s := range sv.Servers {
					if err := cli.PrintJSON(env.Out, s); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

func printMembers(env *cli.Env, reply *wire.MembersReply) error {
	var rows []memberRow
	for _, m := range reply.Members {
		rows = append(rows, memberRowOf(m))
	}
	return cli.List(env, rows, table.Row{"id", "role", "", "address", "lacks", "release", "level", ""}, func(r memberRow) table.Row {
		return table.Row{r.ID, r.Role, view.UpDown(r.Alive), strings.Join(r.Addresses, ","), r.Lag, r.Release, r.Level, r.Why}
	})
}

func addMember(ctx context.Context, c *cli.Connection, id, address string) (*wire.MembersReply, error) {
	return view.RequestMembers(ctx, c, &wire.MetaRequest{Op: &wire.MetaRequest_AddMember{AddMember: &wire.AddMember{Id: id, Address: address}}})
}

func removeMember(ctx context.Context, c *cli.Connection, id string) (*wire.MembersReply, error) {
	return view.RequestMembers(ctx, c, &wire.MetaRequest{Op: &wire.MetaRequest_RemoveMember{RemoveMember: &wire.RemoveMember{Id: id}}})
}

func memberOf(reply *wire.MembersReply, id string) *wire.Member {
	for _, m := range reply.GetMembers() {
		if m.Id == id && !m.Waiting {
			return m
		}
	}
	return nil
}

// memberArg reads ID=HOST:PORT.
func memberArg(arg string) (id, address string, err error) {
	id, address, ok := strings.Cut(arg, "=")
	if !ok || id == "" || address == "" {
		return "", "", cli.UsageError("%q: write ID=HOST:PORT", arg)
	}
	address, err = cli.ServerAddress(address)
	return id, address, err
}

// memberWait is how long `add` and `replace` wait for a server to catch up.
const memberWait = 30 * time.Minute

func newMetadataAddCommand(env *cli.Env) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "add ID=HOST:PORT",
		Short: "Add a metadata server, and wait until it votes",
		Long: `Make a server that was started with --join a member of the cluster. It gets no vote before
it has caught up (at most 256 entries behind). Then the leader gives it a vote by itself.
The command waits for that and shows the progress. If it is interrupted, run it again.

An id is good for one directory: the cluster refuses one that a member ever had.`,
		Example: "  moraine metadata --id m4 --data /var/lib/moraine --join --peers m1=host1:7400,m4=host4:7400 ...   # on host4\n  moraine metadata add m4=host4:7400",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, address, err := memberArg(args[0])
			if err != nil {
				return err
			}
			c, err := env.Dial(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			return addAndWait(cmd.Context(), env, c, id, address, wait)
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", memberWait, "wait this long for the server to catch up; 0: "+
		"do not wait")
	return cmd
}

// addAndWait adds a server and waits until it votes.
func addAndWait(ctx context.Context, env *cli.Env, c *cli.Connection, id, address string, wait time.Duration) error {
	reply, err := addMember(ctx, c, id, address)
	if err != nil {
		return err
	}
	deadline, said := time.Now().Add(wait), ""
	for {
		m := memberOf(reply, id)
		switch {
		case m == nil:
			return fmt.Errorf("%s is no member now: another administrator removed it", id)
		case m.Voter:
			env.Note("%s votes", id)
			return nil
		}
		if m.Why != said && m.Why != "" {
			said = m.Why
			env.Note("%s has no vote yet: %s", id, said)
		}
		if !time.Now().Before(deadline) {
			if wait == 0 {
				return nil
			}
			return fmt.Errorf("%s has no vote after %v: %s; it gets one once it has caught up, as "+
				"`moraine metadata ls` shows", id, wait, said)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
		if reply, err = view.Members(ctx, c); err != nil {
			return err
		}
	}
}

func newMetadataRemoveCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "remove ID",
		Short: "Remove a metadata server from the cluster",
		Long: `Remove a metadata server from the cluster. The cluster refuses where the servers that answer
would not be a majority of those left. A leader hands over first. The server ends by itself
when it learns of its removal. Its id and its --data are of no use any more.`,
		Args: cobra.ExactArgs(1),
		RunE: env.OnCluster(func(ctx context.Context, c *cli.Connection, args []string) error {
			reply, err := removeMember(ctx, c, args[0])
			if err != nil {
				return err
			}
			noteRemoved(env, args[0], reply)
			return nil
		}),
	}
}

func noteRemoved(env *cli.Env, id string, reply *wire.MembersReply) {
	voters := 0
	for _, m := range reply.GetMembers() {
		if m.Voter {
			voters++
		}
	}
	env.Note("%s is removed; %s left: take it out of --peers and --endpoint where they name it", id, cli.Are(voters, "server is", "servers are"))
	env.Note("%s", redundancy(voters))
}

// redundancy says which losses this many voters survive.
func redundancy(voters int) string {
	switch voters {
	case 1:
		return "nothing may be lost now: while this server is down the cluster stands still. With its " +
			"disk all metadata since the last `moraine metadata backup` is gone; add others (`moraine " +
			"metadata add`)"
	case 2:
		return "none may be away now: while either is down the cluster stands still; add a third " +
			"(`moraine metadata add`)"
	default:
		return fmt.Sprintf("%d of %d may be away or lost at once now, including those that are away "+
			"already", (voters-1)/2, voters)
	}
}

func newMetadataReplaceCommand(env *cli.Env) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "replace OLD NEW=HOST:PORT",
		Short: "Replace a metadata server by another",
		Long: `Add a server, wait until it votes, and remove another: the same as "add" and "remove", one
after the other. If the command is interrupted at any point, run it again: it continues
from there. Use it to bring back a server whose disk was lost, under a new id.`,
		Example: "  moraine metadata replace m2 m4=host4:7400",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, address, err := memberArg(args[1])
			if err != nil {
				return err
			}
			if id == args[0] {
				return cli.UsageError("%s: the new server needs an id that was never used", id)
			}
			c, err := env.Dial(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			return replaceMember(cmd.Context(), env, c, args[0], id, address, wait)
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", memberWait, "wait this long for the new server to catch up")
	return cmd
}

func replaceMember(ctx context.Context, env *cli.Env, c *cli.Connection, old, id, address string, wait time.Duration) error {
	reply, err := view.Members(ctx, c)
	if err != nil {
		return err
	}
	if memberOf(reply, old) == nil && memberOf(reply, id) == nil {
		return fmt.Errorf("%s is not a metadata server: see `moraine metadata ls`", old)
	}
	if err := addAndWait(ctx, env, c, id, address, max(wait, time.Second)); err != nil {
		return err
	}
	if reply, err = removeMember(ctx, c, old); err != nil {
		return err
	}
	noteRemoved(env, old, reply)
	return nil
}
