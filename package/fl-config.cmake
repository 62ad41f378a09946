# find_package(fl) gives the target fl::fl. It lies in lib/cmake/fl of where fl is installed.
get_filename_component(fl_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET fl::fl)
  add_library(fl::fl SHARED IMPORTED)
  set_target_properties(fl::fl PROPERTIES
    IMPORTED_LOCATION "${fl_prefix}/lib/libfl.so"
    INTERFACE_INCLUDE_DIRECTORIES "${fl_prefix}/include/fl"
    INTERFACE_COMPILE_DEFINITIONS FL_SHARED)
endif()
set(fl_FOUND TRUE)
