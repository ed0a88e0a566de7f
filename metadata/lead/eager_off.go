//go:build !moraine_eager

package lead

// eager is false: a leader proposes nothing past the feature level of the cluster.
const eager = false
