// Package policycmd has the commands for policies and quotas of directories.
//
// One path through it: `moraine quota set` -> quotaBounds reads the bounds -> one request
// sets them; `quota get` shows the quota and the room that is left.
package policycmd

import (
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/jsonname"
	"github.com/spf13/cobra"
)

// policyInfo is what `policy get` prints.
type policyInfo struct {
	Path   jsonname.Name `json:"path"`
	Flush  string        `json:"flush"`
	Scheme string        `json:"scheme"`
	// Foreign is what a flush does where the key has an object that this cluster did not
	// write.
	Foreign string `json:"foreign"`
	// Trash is how long removed files stay in the trash; "off": they do not go there.
	Trash string `json:"trash"`
	Own   bool   `json:"own"`
}

// NewPolicyCommand returns `moraine policy`.
func NewPolicyCommand(env *cli.Env) *cobra.Command {
	return cli.Parent(&cobra.Command{
		Use:     "policy",
		GroupID: cli.GroupCluster,
		Short:   "Show and set what the cluster does by itself with files below a directory",
	}, newPolicySetCommand(env), newPolicyGetCommand(env))
}

func newPolicySetCommand(env *cli.Env) *cobra.Command {
	var given changes
	cmd := &cobra.Command{
		Use:   "set PATH",
		Short: "Set the policy of a directory: what the cluster does by itself with the files below it",
		Long: `Set the given parts of a directory's own policy; the other parts stay. The policy applies to
all that is below the directory, except below directories with their own policy. "inherit"
removes a part.

With --trash, files and trees that are removed below the directory stay in PATH/` + moraine.TrashDir + `/HOUR for that time.
They count as used space. Take one back with mv; rm removes it for good.`,
		Example: `  moraine policy set --flush on-commit moraine:///runs
  moraine policy set --trash 24h moraine:///home
  moraine policy set --flush inherit --scheme inherit moraine:///runs`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			change, err := given.parse(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			return env.Each(cmd.Context(), args, cli.ParseRemote, func(c *cli.Connection, l cli.Location) error {
				attr, err := c.Stat(cmd.Context(), l.Path)
				if err != nil {
					return err
				}
				if !attr.IsDir() {
					return cli.UsageError("policy set: %s is not a directory: set the policy of its "+
						"directory", l)
				}
				now, err := c.Policies().Get(cmd.Context(), attr.Inode())
				if err != nil {
					return err
				}
				own := now.Own
				change(&own)
				return cli.Named(c.Policies().Set(cmd.Context(), attr.Inode(), own), l, attr.Inode())
			})
		},
	}
	cmd.Flags().StringVar(&given.flush, "flush", "", "when the cluster flushes files to the object tier: "+
		"never, on-commit, inherit")
	cmd.Flags().StringVar(&given.scheme, "scheme", "", "scheme of new files: 4+2, 8+3, x3, inherit")
	cmd.Flags().StringVar(&given.foreign, "foreign", "", "what a flush does where the key has an object that "+
		"this cluster did not write: refuse, overwrite, inherit")
	cmd.Flags().StringVar(&given.trash, "trash", "", "how long removed files stay in the trash: a time such as 24h, off, inherit")
	return cmd
}

func newPolicyGetCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "get PATH...",
		Short: "Show the policy in effect for files and directories",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var infos []policyInfo
			err := env.Each(cmd.Context(), args, cli.ParseRemote, func(c *cli.Connection, l cli.Location) error {
				attr, err := c.Stat(cmd.Context(), l.Path)
				if err != nil {
					return err
				}
				p, err := c.Policies().Get(cmd.Context(), attr.Inode())
				if err != nil {
					return err
				}
				infos = append(infos, describePolicy(l.String(), p))
				return nil
			})
			if err != nil {
				return err
			}
			return cli.List(env, infos, table.Row{"path", "flush", "scheme", "foreign objects", "trash", "own"}, func(i policyInfo) table.Row {
				return table.Row{i.Path, i.Flush, i.Scheme, i.Foreign, i.Trash, i.Own}
			})
		},
	}
}

func describePolicy(path string, p client.InodePolicy) policyInfo {
	e := p.Effective
	info := policyInfo{Path: jsonname.Name(path), Flush: "never", Scheme: "by the number of hosts", Foreign: "refuse", Trash: "off",
		Own: p.Own != (client.Policy{})}
	if e.Foreign == client.ForeignOverwrite {
		info.Foreign = "overwrite"
	}
	if e.Trash > client.TrashOff {
		info.Trash = e.Trash.String()
	}
	if e.Flush != client.FlushInherit {
		info.Flush = flushPolicies[e.Flush]
	}
	if e.Scheme.K != 0 {
		info.Scheme = e.Scheme.String()
	}
	return info
}
