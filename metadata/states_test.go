package metadata_test

import "github.com/morainefs/moraine/transport/wire"

const (
	in       = wire.DeviceState_DEVICE_STATE_IN
	out      = wire.DeviceState_DEVICE_STATE_OUT
	draining = wire.DeviceState_DEVICE_STATE_DRAINING
)
