package policycmd

import (
	"context"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/jsonname"
)

// quotaInfo is what `quota ls` prints of a directory.
type quotaInfo struct {
	Path        jsonname.Name `json:"path"`
	Bytes       uint64        `json:"bytes"`
	QuotaBytes  uint64        `json:"quota_bytes"`
	Inodes      uint64        `json:"inodes"`
	QuotaInodes uint64        `json:"quota_inodes"`
}

// roomInfo is what `quota get` prints of a path.
type roomInfo struct {
	Path    jsonname.Name `json:"path"`
	Bytes   uint64        `json:"bytes"`
	Inodes  uint64        `json:"inodes"`
	Limited bool          `json:"limited"`
	// Where limited, under all quotas above:
	RoomBytes  *uint64 `json:"room_bytes,omitempty"`
	RoomInodes *uint64 `json:"room_inodes,omitempty"`
	// The nearest quota:
	QuotaPath   jsonname.Name `json:"quota_path,omitempty"`
	QuotaBytes  uint64        `json:"quota_bytes,omitempty"`
	QuotaInodes uint64        `json:"quota_inodes,omitempty"`
}

// checkInfo is what `quota check` prints.
type checkInfo struct {
	Path    jsonname.Name `json:"path"`
	Bytes   uint64        `json:"bytes"`
	Inodes  uint64        `json:"inodes"`
	Correct bool          `json:"correct"`
	Found   string        `json:"found,omitempty"`
}

// NewQuotaCommand returns `moraine quota`.
func NewQuotaCommand(env *cli.Env) *cobra.Command {
	return cli.Parent(&cobra.Command{
		Use:     "quota",
		GroupID: cli.GroupCluster,
		Short:   "Limit what may be below a directory",
		Long: `Limit the bytes and inodes (files, directories, links) below a directory. An operation that
would exceed a quota fails with "quota exceeded", EDQUOT on a mount. All quotas above a
file apply. Operations that free space always succeed.`,
	}, newQuotaSetCommand(env), newQuotaGetCommand(env), newQuotaListCommand(env), newQuotaCheckCommand(env))
}

func newQuotaSetCommand(env *cli.Env) *cobra.Command {
	var capacity, inodes string
	cmd := &cobra.Command{
		Use:   "set PATH",
		Short: "Set a directory's quota; bounds that are not given stay",
		Long: `Set a directory's quota; bounds that are not given stay. "none" removes a bound. Under a
quota below the current use nothing can grow until enough is removed.`,
		Example: `  moraine quota set --capacity 10TiB --inodes 1000000 moraine:///teams/a
  moraine quota set --capacity none --inodes none moraine:///teams/a`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			bytes, files, err := quotaBounds(capacity, inodes)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			return env.Each(ctx, args, cli.ParseRemote, func(c *cli.Connection, l cli.Location) error {
				dir, own, err := ownQuota(ctx, c, l)
				if err != nil {
					return err
				}
				if bytes == nil {
					bytes = &own.QuotaBytes
				}
				if files == nil {
					files = &own.QuotaInodes
				}
				return cli.Named(c.Quotas().Set(ctx, dir, *bytes, *files), l, dir)
			})
		},
	}
	cmd.Flags().StringVar(&capacity, "capacity", "", "largest number of bytes below the directory: 10TiB, none")
	cmd.Flags().StringVar(&inodes, "inodes", "", "largest number of files, directories and links below it: 1000000, "+
		"none")
	return cmd
}

// quotaBounds reads the bounds that flags give; nil where a flag is missing.
func quotaBounds(capacity, inodes string) (bytes, files *uint64, err error) {
	if capacity == "" && inodes == "" {
		return nil, nil, cli.UsageError("quota set: no bound is given: give --capacity, --inodes, or both " +
			"(\"none\" removes a bound)")
	}
	var b, f uint64
	if capacity != "" {
		if bytes = &b; capacity != "none" {
			if b, err = cli.ParseSize(capacity); err != nil {
				return nil, nil, err
			}
			if b == 0 {
				return nil, nil, cli.UsageError("--capacity 0 is no bound; to keep everything out, write " +
					"1; to remove the bound, write none")
			}
		}
	}
	if inodes != "" {
		if files = &f; inodes != "none" {
			if f, err = strconv.ParseUint(inodes, 10, 62); err != nil || f == 0 {
				return nil, nil, cli.UsageError("--inodes %q: write a number, 1 or more, or none", inodes)
			}
		}
	}
	return bytes, files, nil
}

// ownQuota returns a directory and the quota that it has itself.
func ownQuota(ctx context.Context, c *cli.Connection, l cli.Location) (moraine.InodeID, client.Usage, error) {
	attr, err := c.Stat(ctx, l.Path)
	if err != nil {
		return 0, client.Usage{}, err
	}
	if !attr.IsDir() {
		return 0, client.Usage{}, cli.UsageError("quota: %s is not a directory: name a directory above it", l)
	}
	u, err := c.Quotas().Usage(ctx, attr.Inode())
	return attr.Inode(), u.Usage, err
}

func newQuotaGetCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "get PATH...",
		Short: "Show the use below a path, and the room under its quotas",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var infos []roomInfo
			err := env.Each(cmd.Context(), args, cli.ParseRemote, func(c *cli.Connection, l cli.Location) error {
				attr, err := c.Stat(cmd.Context(), l.Path)
				if err != nil {
					return err
				}
				u, err := c.Quotas().Usage(cmd.Context(), attr.Inode())
				if err != nil {
					return err
				}
				infos = append(infos, describeRoom(l.String(), u))
				return nil
			})
			if err != nil {
				return err
			}
			return cli.List(env, infos, table.Row{"path", "bytes", "inodes", "room", "inodes left", "nearest quota"}, func(i roomInfo) table.Row {
				if !i.Limited {
					return table.Row{i.Path, cli.Size(i.Bytes), i.Inodes, "no quota", "no quota", ""}
				}
				return table.Row{i.Path, cli.Size(i.Bytes), i.Inodes, left(i.RoomBytes, cli.Size), left(i.RoomInodes, plain), i.QuotaPath}
			})
		},
	}
}

// unbounded is the service's answer where no quota applies.
const unbounded = 1 << 62

func describeRoom(path string, u client.Space) roomInfo {
	i := roomInfo{Path: jsonname.Name(path), Bytes: u.Usage.Bytes, Inodes: u.Usage.Inodes, Limited: u.Limited}
	if u.Limited && u.RoomBytes < unbounded {
		i.RoomBytes = &u.RoomBytes
	}
	if u.Limited && u.RoomInodes < unbounded {
		i.RoomInodes = &u.RoomInodes
	}
	if q := u.Quota; q != nil {
		i.QuotaPath, i.QuotaBytes, i.QuotaInodes = jsonname.Name(q.Path), q.QuotaBytes, q.QuotaInodes
	}
	return i
}

// left writes the room under a bound, for people.
func left(n *uint64, write func(uint64) string) string {
	if n == nil {
		return "any"
	}
	return write(*n)
}

// plain writes a number without a unit.
func plain(n uint64) string { return strconv.FormatUint(n, 10) }

func newQuotaListCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the directories with quotas, and their use",
		Args:  cobra.NoArgs,
		RunE: env.OnCluster(func(ctx context.Context, c *cli.Connection, _ []string) error {
			var infos []quotaInfo
			for q, err := range c.Quotas().List(ctx) {
				if err != nil {
					return err
				}
				infos = append(infos, quotaInfo{Path: jsonname.Name(q.Path), Bytes: q.Bytes, QuotaBytes: q.QuotaBytes, Inodes: q.Inodes, QuotaInodes: q.QuotaInodes})
			}
			return cli.List(env, infos, table.Row{"path", "bytes", "of", "inodes", "of"}, func(i quotaInfo) table.Row {
				return table.Row{i.Path, cli.Size(i.Bytes), bound(i.QuotaBytes, cli.Size), i.Inodes, bound(i.QuotaInodes, plain)}
			})
		}),
	}
}

// bound writes a bound of a quota for people.
func bound(n uint64, write func(uint64) string) string {
	if n == 0 {
		return "any"
	}
	return write(n)
}

func newQuotaCheckCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "check PATH",
		Short: "Count the use of the cluster again, and correct wrong counts",
		Long: `Count the use of the whole cluster again, while it works, and compare. If counts
were wrong, the command corrects and prints them, and fails. Report that: counts never go
wrong by themselves. PATH selects only what is shown.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			return env.Each(ctx, args, cli.ParseRemote, func(c *cli.Connection, l cli.Location) error {
				attr, err := c.Stat(ctx, l.Path)
				if err != nil {
					return err
				}
				j, err := Recounted(ctx, c)
				if err != nil {
					return err
				}
				u, err := c.Quotas().Usage(ctx, attr.Inode())
				if err != nil {
					return err
				}
				return printCheck(env, checkInfo{Path: jsonname.Name(l.String()), Bytes: u.Usage.Bytes, Inodes: u.Usage.Inodes, Correct: j.Error == "", Found: j.Error})
			})
		},
	}
}

// Recounted starts a new count in the cluster and waits for its end.
func Recounted(ctx context.Context, c *cli.Connection) (client.Job, error) {
	j, err := c.Quotas().Recount(ctx)
	if err != nil {
		return client.Job{}, err
	}
	return c.Jobs().Wait(ctx, j.ID, nil)
}

func printCheck(env *cli.Env, i checkInfo) error {
	if env.Global.JSON {
		if err := cli.PrintJSON(env.Out, i); err != nil {
			return err
		}
	} else if i.Correct {
		env.Note("%s: %s in %s; all counts were right", i.Path, cli.Size(i.Bytes), cli.CountOf(int(i.Inodes), "inode"))
	}
	if !i.Correct {
		return &moraine.Error{Op: "quota check", Ref: string(i.Path), Kind: moraine.Corrupt, Err: errText(i.Found)}
	}
	return nil
}

// errText is an error with the text of the cluster's answer.
type errText string

// Error implements error.
func (e errText) Error() string { return string(e) }
