package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// shortExamples are the examples of commands that need only a line or two. The key is the
// command line after "moraine". A longer example is beside the other texts of its command.
var shortExamples = [][]string{
	{"cat", "moraine cat moraine:///runs/llama/notes.txt"},
	{"du", "moraine du moraine:///runs moraine:///datasets"},
	{"mkdir", "moraine mkdir -p moraine:///datasets/text/train"},
	{"mv", "moraine mv moraine:///inbox/text moraine:///datasets/text"},
	{"rm", "moraine rm moraine:///inbox/old.tar", "moraine rm -r moraine:///inbox"},
	{"stat", "moraine stat moraine:///datasets/text/train/0.tar --json"},
	{"ckpt ls", "moraine ckpt ls moraine:///runs", "moraine ckpt ls moraine:///runs/llama --all"},
	{"ckpt restore", "moraine ckpt restore moraine:///runs/llama ./restored", "moraine ckpt restore moraine:///runs/llama ./restored --step 1000"},
	{"ckpt show", "moraine ckpt show moraine:///runs/llama --step 1000"},
	{"ckpt verify", "moraine ckpt verify moraine:///runs/llama --step 1000"},
	{"cert init", "moraine cert init ./ca"},
	{"cert issue", "moraine cert issue ./ca metadata m1 --out ./m1", "moraine cert issue ./ca client alice --scope /team-a --read-only --out ./alice"},
	{"cert show", "moraine cert show ./ca", "moraine cert show ./alice alice --json"},
	{"cluster lost", "moraine cluster lost --json"},
	{"cluster quarantine", "moraine cluster quarantine"},
	{"cluster status", "moraine cluster status --wait 1m", "moraine cluster status --json"},
	{"cluster upgrade", "moraine cluster upgrade", "moraine cluster upgrade --finish"},
	{"demo", "moraine demo"},
	{"device ls", "moraine device ls"},
	{"device set", "moraine device set 7 out --reason 'read errors'", "moraine device set 7 in"},
	{"drain", "moraine drain n3"},
	{"fsck", "moraine fsck", "moraine fsck moraine:///runs/llama --repair"},
	{"host ls", "moraine host ls"},
	{"host rm", "moraine host rm n3"},
	{"inspect device", "moraine inspect device /mnt/nvme0"},
	{"inspect log", "moraine inspect log /var/lib/moraine"},
	{"inspect objects", "moraine inspect objects ./objects --data"},
	{"inspect snapshot", "moraine inspect snapshot /var/lib/moraine"},
	{"inspect state", "moraine inspect state /var/lib/moraine --check"},
	{"job cancel", "moraine job cancel 1000000000a"},
	{"job ls", "moraine job ls"},
	{"job wait", "moraine job wait 1000000000a"},
	{"metadata backup", "moraine metadata backup /backups/metadata-2026-11-22"},
	{"metadata force-quorum", "moraine metadata force-quorum --id m2 --data /var/lib/moraine --address host2:7400 --i-accept-the-loss"},
	{"metadata ls", "moraine metadata ls"},
	{"metadata remove", "moraine metadata remove m3"},
	{"metadata status", "moraine metadata status"},
	{"policy get", "moraine policy get moraine:///runs/llama"},
	{"quota check", "moraine quota check moraine:///teams/a"},
	{"quota get", "moraine quota get moraine:///teams/a"},
	{"quota ls", "moraine quota ls"},
	{"rebalance pause", "moraine rebalance pause"},
	{"rebalance resume", "moraine rebalance resume"},
	{"rebalance status", "moraine rebalance status"},
	{"scrub start", "moraine scrub start"},
	{"scrub status", "moraine scrub status"},
	{"tier status", "moraine tier status"},
	{"version", "moraine version"},
}

// addExamples gives the commands below root their short examples. It panics where an
// example names no command, or one that has an example already.
func addExamples(root *cobra.Command) {
	for _, e := range shortExamples {
		cmd, rest, err := root.Find(strings.Fields(e[0]))
		if err != nil || len(rest) > 0 || cmd.Example != "" {
			panic("no command without an example: " + e[0])
		}
		cmd.Example = "  " + strings.Join(e[1:], "\n  ")
	}
}
