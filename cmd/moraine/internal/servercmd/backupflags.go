package servercmd

import (
	"path/filepath"
	"time"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/metadata"
	"github.com/spf13/pflag"
)

// backupFlags say which backups of the metadata a server takes by itself.
type backupFlags struct {
	every, horizon time.Duration
	dir            string
	keep           int
}

func (b *backupFlags) flags(f *pflag.FlagSet) {
	f.DurationVar(&b.every, "backup-interval", 6*time.Hour, "how often the leader takes a backup of "+
		"the metadata by itself; -1s: never")
	f.StringVar(&b.dir, "backup-dir", "", "directory in which the leader keeps these backups (default "+
		"\"backups\" beside its state)")
	f.IntVar(&b.keep, "backup-keep", 4, "how many of these backups the leader keeps")
	f.DurationVar(&b.horizon, "backup-horizon", 0, "how long devices with room keep chunks that no "+
		"file names any more, for backups that name them; -1s: not at all (default --backup-interval "+
		"times --backup-keep)")
}

func (b *backupFlags) check() error {
	if b.every == 0 || b.keep < 1 {
		return cli.UsageError("--backup-interval and --backup-keep cannot be 0: --backup-interval -1s " +
			"turns backups off")
	}
	return nil
}

// settings fills in the directory for a server that keeps its state in data.
func (b *backupFlags) settings(cfg *metadata.Config, data string) {
	cfg.BackupDir, cfg.BackupEvery, cfg.BackupKeep, cfg.BackupHorizon = b.dir, b.every, b.keep, b.horizon
	switch {
	case b.every <= 0:
		cfg.BackupDir, cfg.BackupEvery = "", 0
	case b.dir == "":
		cfg.BackupDir = filepath.Join(data, "backups")
	}
}
