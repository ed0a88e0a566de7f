package moraine

// FeatureLevel is the newest behaviour of the replicated state that this build supports. The
// level that a cluster uses is in its state. It is that of the build that began the cluster. It
// rises only after all servers support more, by `moraine cluster upgrade --finish`.
const FeatureLevel = 1
