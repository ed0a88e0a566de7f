package ckptcmd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// levelRow is what `ckpt policy` prints of a level.
type levelRow struct {
	Level     string   `json:"level"`
	Every     uint64   `json:"every,omitempty"`
	KeepLast  uint32   `json:"keep_last,omitempty"`
	KeepEvery uint64   `json:"keep_every,omitempty"`
	KeepFor   float64  `json:"keep_seconds,omitempty"`
	KeepBytes uint64   `json:"keep_bytes,omitempty"`
	KeepTags  []string `json:"keep_tags,omitempty"`
	Own       bool     `json:"own"`
}

func levelRowOf(p ckpt.LevelPolicy, own bool) levelRow {
	return levelRow{Level: p.Level.String(), Every: p.Every, KeepLast: p.KeepLast, KeepEvery: p.KeepEvery, KeepFor: p.KeepFor.Seconds(),
		KeepBytes: p.KeepBytes, KeepTags: p.KeepTags, Own: own}
}

// belongs says which steps belong to the level.
func (r levelRow) belongs() string {
	switch {
	case r.Every > 0:
		return fmt.Sprintf("every %d", r.Every)
	case r.Level == moraine.Object.String():
		return "what is flushed"
	}
	return "all"
}

// keepsAll is what keeps says without rules.
const keepsAll = "all"

// keeps says which of them stay.
func (r levelRow) keeps() string {
	var out []string
	add := func(given bool, format string, args ...any) {
		if given {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(r.KeepLast > 0, "last %d", r.KeepLast)
	add(r.KeepEvery > 0, "every %d", r.KeepEvery)
	add(r.KeepFor > 0, "for %v", time.Duration(r.KeepFor*float64(time.Second)))
	add(r.KeepBytes > 0, "newest %s", cli.Size(r.KeepBytes))
	add(len(r.KeepTags) > 0, "tags %s", strings.Join(r.KeepTags, ","))
	if len(out) == 0 {
		return keepsAll
	}
	return strings.Join(out, ", or ")
}

// ruleFlags are the flags of a level's rule.
type ruleFlags struct {
	level string
	every uint64
	keep  ckpt.LevelPolicy
	bytes cli.SizeFlag
}

// keepFlags are the names of the flags that say which steps stay.
var keepFlags = []string{"keep-last", "keep-every", "keep-for", "keep-bytes", "keep-tag"}

// keepers adds the flags that say which steps stay.
func (r *ruleFlags) keepers(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Uint32Var(&r.keep.KeepLast, "keep-last", 0, "keep so many newest good steps of the level")
	f.Uint64Var(&r.keep.KeepEvery, "keep-every", 0, "keep the steps whose number this divides")
	f.DurationVar(&r.keep.KeepFor, "keep-for", 0, "keep steps that are not older")
	f.Var(&r.bytes, "keep-bytes", "keep the newest good steps that have so many bytes together")
	f.StringSliceVar(&r.keep.KeepTags, "keep-tag", nil, "keep steps with this tag; may be given several times")
}

// rule checks the flags and returns the rule.
func (r *ruleFlags) rule() (ckpt.LevelPolicy, error) {
	p := r.keep
	var err error
	if p.Level, err = moraine.ParseLevel(r.level); err != nil || p.Level < moraine.Memory {
		return p, cli.UsageError("--level %q: write memory, nvme or object", r.level)
	}
	if p.KeepFor < 0 {
		return p, cli.UsageError("--keep-for %v: write a time above 0", p.KeepFor)
	}
	p.Every, p.KeepBytes = r.every, uint64(r.bytes)
	return p, nil
}

func newCkptPolicyCommand(env *cli.Env) *cobra.Command {
	var (
		r               ruleFlags
		remove, inherit bool
	)
	cmd := &cobra.Command{
		Use:   "policy DIR",
		Short: "Show and set which checkpoints go to a level, and which stay there",
		Long: `Without flags: show the policy in effect for a run, or for a directory of runs. With --level:
set the rule of that level; the other levels keep theirs. A directory without its own policy
has that of the directory above. The cluster applies the policy by itself after each save.

Every Nth step goes to the bucket with "--level object --every N". With "--level nvme --every N"
the steps between stay in the memory of several hosts, and no device gets their bytes, unless a
host needs the memory. "ckpt wait --level nvme" and "ckpt pin" bring one of them to the devices.

A step stays while any keep rule of any level keeps it, and a level without keep rules keeps all
its steps. So give level memory a rule too (--keep-last): it says when the steps between go. A
step that only the bucket keeps leaves the devices. The newest good step of each level, pinned
steps, and steps that a program reads always stay.

"ckpt prune RUN --dry-run" shows what the policy says of each step.`,
		Example: `  moraine ckpt policy moraine:///runs --level object --every 500
  moraine ckpt policy moraine:///runs/llama --level nvme --every 10 --keep-last 5
  moraine ckpt policy moraine:///runs/llama --level memory --keep-last 2
  moraine ckpt policy moraine:///runs/llama --inherit`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := cli.ParseRemote(args[0])
			if err != nil {
				return err
			}
			change := func(p ckpt.Policy) ckpt.Policy { return p }
			given := cmd.Flags().Changed
			switch {
			case inherit && given("level"):
				return cli.UsageError("--inherit removes the rules of all levels; it cannot go with --level")
			case given("level"):
				rule, err := r.rule()
				if err != nil {
					return err
				}
				change = func(p ckpt.Policy) ckpt.Policy {
					p = slices.DeleteFunc(p, func(o ckpt.LevelPolicy) bool { return o.Level == rule.Level })
					if !remove {
						p = append(p, rule)
					}
					return p
				}
			case inherit:
				change = func(ckpt.Policy) ckpt.Policy { return nil }
			case slices.ContainsFunc(append(keepFlags, "every", "remove"), given):
				return cli.UsageError("no level is named: give --level memory, nvme or object")
			}
			return ckptPolicy(cmd.Context(), env, l, change, inherit || given("level"))
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.level, "level", "", "set the rule of this level: memory, nvme or object")
	f.Uint64Var(&r.every, "every", 0, "steps whose number this divides go to the level")
	r.keepers(cmd)
	f.BoolVar(&remove, "remove", false, "remove the rule of the level")
	f.BoolVar(&inherit, "inherit", false, "remove the directory's own policy")
	return cmd
}

// ckptPolicy changes the policy of a directory, if it is to change, and prints the one in effect.
func ckptPolicy(ctx context.Context, env *cli.Env, l cli.Location, change func(ckpt.Policy) ckpt.Policy, changes bool) error {
	c, err := env.DialHosts(ctx, l.Hosts, client.Config{})
	if err != nil {
		return err
	}
	defer c.Close()
	attr, err := c.Stat(ctx, l.Path)
	if err != nil {
		return err
	}
	if !attr.IsDir() {
		return cli.UsageError("%s is a file: name a run, or a directory of runs", l)
	}
	own, effective, err := ckpt.GetPolicy(ctx, c.Client, attr.Inode())
	if err == nil && changes {
		if len(own) == 0 {
			own = effective // so that the other levels keep their rules
		}
		if err = ckpt.SetPolicy(ctx, c.Client, attr.Inode(), change(own)); err == nil {
			own, effective, err = ckpt.GetPolicy(ctx, c.Client, attr.Inode())
		}
	}
	if err != nil {
		return cli.Named(err, l, attr.Inode())
	}
	if len(effective) == 0 {
		env.Note("no policy: all steps stay until somebody removes them")
		return printNoPolicy(env)
	}
	if staysWithoutEnd(effective) {
		env.Note("the steps between those of level nvme stay in memory until somebody removes them, or the memory is needed: " +
			"give level memory a keep rule too (--level memory --keep-last 2)")
	}
	rows := make([]levelRow, len(effective))
	for n, p := range effective {
		rows[n] = levelRowOf(p, len(own) > 0)
	}
	return cli.List(env, rows, table.Row{"level", "its steps", "keeps", "own"}, func(r levelRow) table.Row {
		return table.Row{r.Level, r.belongs(), r.keeps(), r.Own}
	})
}

// printNoPolicy prints for scripts each level without a rule.
func printNoPolicy(env *cli.Env) error {
	for level := moraine.Memory; env.Global.JSON && level <= moraine.Object; level++ {
		if err := cli.PrintJSON(env.Out, levelRowOf(ckpt.LevelPolicy{Level: level}, false)); err != nil {
			return err
		}
	}
	return nil
}

// staysWithoutEnd reports whether a policy leaves steps in memory, and has no rule by which they go.
func staysWithoutEnd(p ckpt.Policy) bool {
	some, ruled := false, false
	for _, l := range p {
		some = some || l.Level == moraine.NVMe && l.Every > 1
		ruled = ruled || l.Level == moraine.Memory && levelRowOf(l, false).keeps() != keepsAll
	}
	return some && !ruled
}
