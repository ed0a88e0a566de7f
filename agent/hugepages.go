package agent

import (
	"os"
	"path/filepath"
	"strings"
)

// shmemEnabled is where the kernel says whether files of a tmpfs may have huge pages at all.
const shmemEnabled = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

// hugePages returns the kernel's word for when files of a directory in memory get huge pages:
// within_size, advise, always, force, or hugetlbfs. It is empty if they get none.
func hugePages(dir string) string {
	rule, err := os.ReadFile(shmemEnabled)
	table, err2 := os.ReadFile("/proc/self/mounts")
	switch {
	case err != nil || err2 != nil || strings.Contains(string(rule), "[deny]"):
		return ""
	case strings.Contains(string(rule), "[force]"):
		return "force"
	}
	kind, options := mountOf(dir, string(table))
	if kind == "hugetlbfs" {
		return kind
	}
	for _, o := range strings.Split(options, ",") {
		if huge, ok := strings.CutPrefix(o, "huge="); ok && kind == "tmpfs" && huge != "never" {
			return huge
		}
	}
	return ""
}

// mountOf returns the kind and the options of the mount on which a directory is, from a table of mounts.
func mountOf(dir, table string) (kind, options string) {
	for ; ; dir = filepath.Dir(dir) {
		for line := range strings.Lines(table) {
			if f := strings.Fields(line); len(f) > 3 && f[1] == mountName.Replace(dir) {
				kind, options = f[2], f[3] // the last mount is the visible one
			}
		}
		if kind != "" || dir == filepath.Dir(dir) {
			return kind, options
		}
	}
}

// mountName writes a path as the table of mounts has it.
var mountName = strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`)
