//go:build !moraine_eager

package lead

// eager is false: a leader proposes nothing above the cluster's feature level.
const eager = false
