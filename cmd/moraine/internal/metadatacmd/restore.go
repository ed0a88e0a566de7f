package metadatacmd

import (
	"crypto/rand"
	"fmt"
	"os"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/spf13/cobra"
)

// offlineOptions are the flags of commands that work on a server's directory.
type offlineOptions struct {
	id, data, address string
	yes               bool
}

func (o *offlineOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.id, "id", "", "id of the server that continues, as in its certificate")
	f.StringVar(&o.data, "data", "", "its directory; no server may run on it")
	f.StringVar(&o.address, "address", "", "address at which others reach it, HOST:PORT")
}

func (o *offlineOptions) config() (raftstore.Config, error) {
	if o.id == "" || o.data == "" || o.address == "" {
		return raftstore.Config{}, cli.UsageError("--id, --data and --address are needed: give all three")
	}
	addr, err := cli.ServerAddress(o.address)
	if err != nil {
		return raftstore.Config{}, err
	}
	return raftstore.Config{Dir: o.data, Node: o.id, Cluster: moraine.UUID{1},
		Peers: []raftstore.Peer{{ID: o.id, Address: addr, Client: []string{addr}}}}, nil
}

func newMetadataRestoreCommand(env *cli.Env) *cobra.Command {
	var o offlineOptions
	var after uint8
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore the cluster's metadata from a backup",
		Long: `Make --data, an empty directory on this machine, the directory of a metadata server that
has the metadata of a backup, alone. Start it with only itself in --peers, then add others
("metadata add").

Everything after the backup is lost. Files that were made since are gone. Files that were
removed since are back, maybe without their bytes. The metadata is a new incarnation, so
servers refuse earlier sessions, grants and tokens. They keep and list ("cluster
quarantine") chunks that nothing explains now, and do not delete them. Earlier metadata
servers can never take part again with their old --data.

Give --after-incarnation the highest number that an incarnation of this cluster ever had.
"metadata status" shows it, and "metadata force-quorum" gets it from chunkservers. Include
an incarnation that you abandon now, and one from this same backup. The new incarnation
gets the number after it. The backup cannot know what came after it.

Where the number is too low, the chunkservers refuse the new server, which ends and says so.
If you do not know the number, give one that is surely not below it; there are 254.`,
		Example: "  moraine metadata restore metadata.backup --id m1 --data /var/lib/moraine --address host1:7400 --after-incarnation 1",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := o.config()
			if err != nil {
				return err
			}
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			st, err := f.Stat()
			if err != nil {
				return err
			}
			info, err := raftstore.ReadBackup(f, st.Size())
			if err != nil {
				return &moraine.Error{Ref: args[0], Kind: moraine.KindOf(err), Err: err}
			}
			if !cmd.Flags().Changed(afterFlag) {
				return cli.UsageError("--after-incarnation is needed: the highest number that an "+
					"incarnation of this cluster ever had. The backup is of %d: give that only if "+
					"nobody restored any backup, or forced a quorum, since", info.Incarnation)
			}
			begin, err := metadata.NextIncarnation(max(moraine.Incarnation(after), moraine.Incarnation(info.Incarnation)), rand.Reader)
			if err != nil {
				return err
			}
			if info, err = raftstore.Restore(cfg, raftstore.Deps{}, f, st.Size(), begin); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if err := printBackup(env, "restored from", args[0], info, nil); err != nil {
				return err
			}
			env.Note("%s", horizonNeeded(info.Taken, info.Horizon, time.Now()))
			env.Note("%s", revokedSince(info.Taken))
			env.Note("it is incarnation %d now: for every later restore, also of this same backup, give "+
				"--after-incarnation %[1]d or more", begin.Incarnation.Number)
			env.Note("start it: moraine metadata --id %s --data %s --peers %s=%s ...; then add others with `moraine metadata add`", o.id, o.data, o.id, cfg.Peers[0].Address)
			return nil
		},
	}
	o.flags(cmd)
	cmd.Flags().Uint8Var(&after, afterFlag, 0, "highest number that an incarnation of this cluster ever had, including one from "+
		"this backup (needed)")
	return cmd
}

// revokedSince says that a restore takes certificates off the list of revoked ones.
func revokedSince(taken time.Time) string {
	return fmt.Sprintf("warning: the list of revoked certificates is that of the backup: each that was revoked after %s is accepted again. Revoke it again (`moraine cert revoke`) once the server runs, before others can reach it", taken.UTC().Format(time.RFC3339))
}

// horizonNeeded says which backup horizon a backup needs if it is restored now.
func horizonNeeded(taken time.Time, horizon time.Duration, now time.Time) string {
	age := now.Sub(taken).Round(time.Second)
	const what = "files that were removed, written over, rewritten, packed or evicted since"
	switch {
	case age < 0:
		return fmt.Sprintf("warning: the backup says that it was taken at %s, which is in the future: "+
			"its age is not known. It brings back %s only if --backup-horizon was longer than that", taken.UTC().Format(time.RFC3339), what)
	case horizon == 0:
		return fmt.Sprintf("warning: the backup is %v old, and the cluster kept nothing for backups "+
			"when it was taken. To bring back %s it needs --backup-horizon %v", age, what, age)
	case age > horizon:
		return fmt.Sprintf("warning: the backup is %v old, and --backup-horizon was %v when it was "+
			"taken. To bring back %s it needs --backup-horizon %v at least; `moraine fsck` names what "+
			"is lost", age, horizon, what, age)
	}
	return fmt.Sprintf("the backup is %v old: it needs a --backup-horizon of that to bring back %s; it was %v when it was taken", age, what, horizon)
}
