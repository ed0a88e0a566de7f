//go:build !moraine_level2

package moraine

// FeatureLevel is the newest behaviour of the replicated state that this build
// can speak. What a cluster uses is in its state: that of the build that began
// it, and higher only once all its servers can speak more, by `moraine cluster
// upgrade --finish`.
const FeatureLevel = 4
