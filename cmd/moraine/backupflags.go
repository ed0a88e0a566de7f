package main

import (
	"path/filepath"
	"time"

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
	f.DurationVar(&b.every, "backup-interval", 6*time.Hour, "the leader takes a backup of the metadata by itself this often; -1s: none")
	f.StringVar(&b.dir, "backup-dir", "", "directory that the leader keeps these backups in (default \"backups\" beside its state)")
	f.IntVar(&b.keep, "backup-keep", 4, "how many of them are kept")
	f.DurationVar(&b.horizon, "backup-horizon", 0, "chunks that no file names any more are kept this long for backups that do, as long as their devices have room; -1s: not at all (default --backup-interval times --backup-keep)")
}

func (b *backupFlags) check() error {
	if b.every == 0 || b.keep < 1 {
		return usageError("--backup-interval and --backup-keep cannot be 0: -1s of the first turns backups off")
	}
	return nil
}

// settings completes those of a server that keeps its state in data.
func (b *backupFlags) settings(cfg *metadata.Config, data string) {
	cfg.BackupDir, cfg.BackupEvery, cfg.BackupKeep, cfg.BackupHorizon = b.dir, b.every, b.keep, b.horizon
	switch {
	case b.every <= 0:
		cfg.BackupDir, cfg.BackupEvery = "", 0
	case b.dir == "":
		cfg.BackupDir = filepath.Join(data, "backups")
	}
}
